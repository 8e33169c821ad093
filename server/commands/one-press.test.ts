import { expect, test } from 'vitest';
import { onPress } from './one-press.ts';

test('a signal that comes twice within half a second is one', () => {
  let nowMs = 1000;
  const heard: string[] = [];
  const press = onPress(
    () => heard.push('first'),
    () => heard.push('again'),
    () => nowMs,
  );
  press();
  press();
  nowMs = 1500;
  press();
  expect(heard).toEqual(['first']);
  nowMs = 1501;
  press();
  press();
  expect(heard).toEqual(['first', 'again', 'again']);
});
