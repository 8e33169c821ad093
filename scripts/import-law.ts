import { builtinModules } from 'node:module';
import path from 'node:path';
import ts from 'typescript';

/** The folders of engine/, each of which imports only from those before it. node/ is last and imports all. */
const engineFolders = [
  'ops',
  'model',
  'schedule',
  'comm',
  'interpret',
  'runtime',
  'checkpoint',
  'data',
  'trainer',
  'node',
];

/** What the pure parts of the engine take from outside. */
const pureEnginePackages = ['zod', 'yaml'];

/** Globals of a page or of Node, which the pure parts of the engine cannot count on. */
const pageGlobals = ['document', 'window', 'navigator', 'localStorage', 'sessionStorage', 'XMLHttpRequest'];
const nodeGlobals = ['process', 'Buffer', 'global', 'setImmediate', '__dirname', '__filename'];
const impureGlobals = new Set([...pageGlobals, ...nodeGlobals]);

/** One import of one file. */
interface Import {
  readonly specifier: string;
  /** Gone after compilation: `import type`, `export type … from`, or a type that names its module. */
  readonly typeOnly: boolean;
  readonly line: number;
}

/** What the law asks of one file. */
interface Source {
  readonly imports: readonly Import[];
  readonly impureUses: readonly { readonly name: string; readonly line: number }[];
}

/**
 * Checks the direction of every import: app → server (types only) → engine, and inside engine from a folder only to
 * those before it in `engineFolders`. No cycles, no imports of tests, nothing but plain TypeScript in its pure parts.
 *
 * @param files path relative to the root, with slashes → text; all of the repository's own .ts, .tsx and .mjs files
 * @returns one readable line for each violation, "file:line: what", sorted; empty if the law holds
 */
export function importLawViolations(files: ReadonlyMap<string, string>): string[] {
  const violations: string[] = [];
  const edges = new Map<string, string[]>();
  const sources = new Map([...files].map(([file, text]) => [file, readSource(file, text)]));
  const isTestSide = (file: string) => isTestByName(file) || Boolean(sources.get(file)?.imports.some(isVitest));
  for (const [file, source] of sources) {
    const isPure = houseOf(file) === 'engine' && !file.startsWith('engine/node/') && !isTestSide(file);
    const targets: string[] = [];
    for (const { specifier, typeOnly, line } of source.imports) {
      const say = (what: string) => violations.push(`${file}:${line}: ${what}`);
      if (specifier.startsWith('.')) {
        const target = path.posix.normalize(path.posix.join(path.posix.dirname(file), specifier));
        if (files.has(target)) targets.push(target);
        else if (!path.posix.extname(target)) say(`imports ${specifier} without its extension`);
        const broken = brokenRule(file, target, typeOnly, isTestSide);
        if (broken) say(broken);
      } else if (isPure && !pureEnginePackages.includes(packageOf(specifier))) {
        say(
          isBuiltin(specifier)
            ? `imports Node's ${specifier}: only engine/node/ may`
            : `imports the package ${packageOf(specifier)}: only engine/node/ may`,
        );
      }
    }
    edges.set(file, targets);
    if (isPure) {
      for (const { name, line } of source.impureUses) {
        violations.push(
          `${file}:${line}: uses ${name}, which exists only in ${nodeGlobals.includes(name) ? 'Node' : 'a page'}`,
        );
      }
    }
  }
  for (const cycle of cyclesOf(edges)) violations.push(`${cycle[0]}: import cycle ${[...cycle, cycle[0]].join(' → ')}`);
  return violations.sort();
}

/** Why `from` may not import `to`, or null. Both are paths relative to the root. */
function brokenRule(from: string, to: string, typeOnly: boolean, isTestSide: (file: string) => boolean): string | null {
  if (isTestSide(to) && !isTestSide(from)) return `imports the test ${to}`;
  const [fromHouse, toHouse] = [houseOf(from), houseOf(to)];
  if (toHouse === 'outside') return `imports ${to}, outside the repository`;
  if (fromHouse === 'app' && toHouse === 'server' && !typeOnly) {
    return `imports ${to} as a value: app takes only types from server ("import type")`;
  }
  if (fromHouse === 'app' && to.startsWith('engine/node/')) return `imports ${to}: a page has no Node`;
  if (fromHouse === 'server' && toHouse === 'app') return `imports ${to}: server knows nothing of app`;
  if (fromHouse === 'engine' && toHouse !== 'engine' && !(isTestSide(from) && toHouse === 'around')) {
    return `imports ${to}: engine imports only engine`;
  }
  if ((fromHouse === 'app' || fromHouse === 'server') && toHouse === 'around' && !isTestSide(from)) {
    return `imports ${to}, which is not part of the product`;
  }
  if (fromHouse === 'engine' && toHouse === 'engine' && !isTestSide(from) && rankOf(to) > rankOf(from)) {
    return `imports ${to}: ${folderOf(from)} comes before ${folderOf(to)} and may not know it`;
  }
  return null;
}

type House = 'app' | 'server' | 'engine' | 'around' | 'outside';

/** `around` is what stands around the product: scripts, benches, browser tests, configuration. */
function houseOf(file: string): House {
  if (file.startsWith('../')) return 'outside';
  const top = file.split('/')[0];
  return top === 'app' || top === 'server' || top === 'engine' ? top : 'around';
}

function folderOf(file: string): string {
  const [, second, ...rest] = file.split('/');
  return rest.length ? `engine/${second}/` : 'the root of engine/';
}

/** The files of engine's root (config, errors) come before all folders. An unknown folder comes after all. */
function rankOf(file: string): number {
  const parts = file.split('/');
  if (parts.length === 2) return -1;
  const rank = engineFolders.indexOf(parts[1]);
  return rank < 0 ? engineFolders.length : rank;
}

/** Tests and what serves only them. A suite that several tests share has no such name, but imports Vitest. */
function isTestByName(file: string): boolean {
  return /\.(test|spec)\.tsx?$/.test(file) || /(^|\/)(testdata|fixtures)\//.test(file) || file.startsWith('e2e/');
}

function isVitest({ specifier }: Import): boolean {
  return packageOf(specifier) === 'vitest';
}

function isBuiltin(specifier: string): boolean {
  return specifier.startsWith('node:') || builtinModules.includes(packageOf(specifier));
}

function packageOf(specifier: string): string {
  return specifier
    .split('/')
    .slice(0, specifier.startsWith('@') ? 2 : 1)
    .join('/');
}

function readSource(file: string, text: string): Source {
  const source = ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true);
  const imports: Import[] = [];
  const impureUses: { name: string; line: number }[] = [];
  const lineOf = (node: ts.Node) => source.getLineAndCharacterOfPosition(node.getStart(source)).line + 1;
  const declared = new Set<string>();

  const visit = (node: ts.Node): void => {
    const add = (specifier: ts.Node | undefined, typeOnly: boolean) => {
      if (specifier && ts.isStringLiteralLike(specifier)) {
        imports.push({ specifier: specifier.text, typeOnly, line: lineOf(node) });
      }
    };
    if (ts.isImportDeclaration(node)) {
      add(node.moduleSpecifier, node.importClause?.phaseModifier === ts.SyntaxKind.TypeKeyword);
    } else if (ts.isExportDeclaration(node)) add(node.moduleSpecifier, node.isTypeOnly);
    else if (ts.isImportTypeNode(node))
      add(ts.isLiteralTypeNode(node.argument) ? node.argument.literal : undefined, true);
    else if (ts.isImportEqualsDeclaration(node) && ts.isExternalModuleReference(node.moduleReference)) {
      add(node.moduleReference.expression, node.isTypeOnly);
    } else if (ts.isCallExpression(node) && isModuleCall(node.expression)) add(node.arguments[0], false);
    else if (isDeclarationName(node)) declared.add(node.text);
    else if (ts.isIdentifier(node) && impureGlobals.has(node.text) && isValueUse(node)) {
      impureUses.push({ name: node.text, line: lineOf(node) });
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  return { imports, impureUses: impureUses.filter(({ name }) => !declared.has(name)) };
}

/** `import(…)`, `require(…)` and `require.resolve(…)`. */
function isModuleCall(callee: ts.Expression): boolean {
  if (callee.kind === ts.SyntaxKind.ImportKeyword) return true;
  const name = ts.isPropertyAccessExpression(callee) && callee.name.text === 'resolve' ? callee.expression : callee;
  return ts.isIdentifier(name) && name.text === 'require';
}

/** A name that a file gives to something of its own is not the global of that name. */
function isDeclarationName(node: ts.Node): node is ts.Identifier {
  const { parent } = node;
  return (
    ts.isIdentifier(node) &&
    parent !== undefined &&
    (ts.isVariableDeclaration(parent) ||
      ts.isParameter(parent) ||
      ts.isFunctionDeclaration(parent) ||
      ts.isBindingElement(parent) ||
      ts.isImportSpecifier(parent)) &&
    parent.name === node
  );
}

/** Whether an identifier stands for a value by itself, and not for a property, a key or a type. */
function isValueUse(node: ts.Identifier): boolean {
  const { parent } = node;
  if (ts.isPropertyAccessExpression(parent)) {
    return (
      parent.expression === node || (ts.isIdentifier(parent.expression) && parent.expression.text === 'globalThis')
    );
  }
  if (ts.isPropertyAssignment(parent)) return parent.initializer === node;
  return !(
    ts.isQualifiedName(parent) ||
    ts.isTypeReferenceNode(parent) ||
    ts.isTypeElement(parent) ||
    ts.isClassElement(parent) ||
    ts.isBindingElement(parent) ||
    ts.isLiteralTypeNode(parent) ||
    ts.isNamedTupleMember(parent) ||
    ts.isLabeledStatement(parent) ||
    ts.isExportSpecifier(parent)
  );
}

/** The cycles of a graph: one, in order and starting at its least name, for each knot of files that reach each other. */
function cyclesOf(edges: ReadonlyMap<string, readonly string[]>): string[][] {
  const cycles: string[][] = [];
  const state = new Map<string, 'open' | 'done'>();
  const trail: string[] = [];
  const walk = (file: string): void => {
    state.set(file, 'open');
    trail.push(file);
    for (const target of edges.get(file) ?? []) {
      if (state.get(target) === 'open') cycles.push(fromLeast(trail.slice(trail.indexOf(target))));
      else if (!state.has(target)) walk(target);
    }
    trail.pop();
    state.set(file, 'done');
  };
  for (const file of edges.keys()) if (!state.has(file)) walk(file);
  return cycles;
}

function fromLeast(cycle: string[]): string[] {
  const start = cycle.indexOf([...cycle].sort()[0]);
  return [...cycle.slice(start), ...cycle.slice(0, start)];
}
