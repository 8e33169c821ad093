import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { schemaDiff } from './schema-diff.mjs';

const prisma = path.resolve(import.meta.dirname, '..', 'prisma');
const schema = readFileSync(path.join(prisma, 'schema.prisma'), 'utf8');

test('the last migration leads to schema.prisma', async () => {
  const last = readdirSync(path.join(prisma, 'migrations'))
    .filter((name) => /^\d{14}_/.test(name))
    .sort()
    .at(-1);
  const snapshot = readFileSync(path.join(prisma, 'migrations', String(last), 'schema.prisma'), 'utf8');
  expect(await schemaDiff(snapshot, schema), 'run npm run db:migration -- NAME').toBeNull();
});

test('a changed schema gives the SQL of the change', async () => {
  expect(await schemaDiff(schema, `${schema}\nmodel Extra {\n  id String @id\n}\n`)).toBe(
    '-- CreateTable\nCREATE TABLE "Extra" (\n    "id" TEXT NOT NULL PRIMARY KEY\n);\n',
  );
});

test('the first migration starts from an empty database', async () => {
  expect(await schemaDiff(null, schema)).toContain('CREATE TABLE');
});
