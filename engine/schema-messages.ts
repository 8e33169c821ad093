import type { z } from 'zod';
import { didYouMean } from './nearest-word.ts';

type SchemaIssue = z.core.$ZodIssue;

/**
 * What a person reads where a value is not of its field's form: what it has to be, and what it is. The schema's own words
 * where it has some ("at most 8 ranks on one machine"). Needs issues that report their input.
 */
export function schemaMessage(issue: SchemaIssue): string {
  if (!isGeneric(issue.message)) return issue.message;
  const given = spoken(issue.input);
  switch (issue.code) {
    case 'invalid_type':
      if (issue.expected === 'nonoptional') return 'is missing';
      return `${needed(issue.expected)}, not ${given}`;
    case 'invalid_value': {
      const values = issue.values.map(String);
      const near = typeof issue.input === 'string' ? didYouMean(issue.input, values) : '';
      return `${given} is none of ${values.join(', ')}${near}`;
    }
    case 'too_small':
      if (issue.origin === 'string') return 'needs a value';
      if (issue.origin === 'array' || issue.origin === 'set')
        return `needs ${issue.minimum} entries, not ${lengthOf(issue.input)}`;
      return `has to be ${issue.inclusive ? 'at least' : 'above'} ${issue.minimum}, not ${given}`;
    case 'too_big':
      if (issue.origin === 'string') return `can have at most ${issue.maximum} characters`;
      if (issue.origin === 'array' || issue.origin === 'set')
        return `can have at most ${issue.maximum} entries, not ${lengthOf(issue.input)}`;
      return `${issue.inclusive ? 'can be at most' : 'has to be below'} ${issue.maximum}, not ${given}`;
    default:
      return issue.message;
  }
}

/** Zod's own words begin like this; those of our schema do not. */
function isGeneric(message: string): boolean {
  return /^(Invalid|Too small|Too big)\b/.test(message);
}

const NEEDS: Readonly<Record<string, string>> = {
  int: 'needs a whole number',
  number: 'needs a number',
  string: 'needs text',
  boolean: 'is true or false',
  array: 'needs a list, for example [a, b]',
  tuple: 'needs a list of two numbers, for example [2, 2]',
  object: 'needs keys and values',
};

function needed(expected: string): string {
  return NEEDS[expected] ?? `needs ${expected}`;
}

/** A value as a person wrote it; a long one cut, so that a message stays a line. */
function spoken(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (typeof value === 'number') return String(value);
  const text = JSON.stringify(value);
  return text.length <= 40 ? text : `${text.slice(0, 37)}…`;
}

function lengthOf(value: unknown): number {
  return Array.isArray(value) ? value.length : 0;
}
