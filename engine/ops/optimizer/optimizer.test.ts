import { describe, expect, test } from 'vitest';
import { CONTROL } from '../control.ts';
import { seededRandom } from '../kernel-case.ts';
import { adam } from './adam.ts';
import { adamParams, controlWith, plainUpdate } from './optimizer.cases.ts';
import { sgd } from './sgd.ts';
import { sgdPlain } from './sgd-plain.ts';
import { stepAdvance } from './step-advance.ts';
import { stepControl } from './step-control.ts';
import { stepNorm } from './step-norm.ts';

const n = 7;
const lr = 0.01;
const random = seededRandom(23);
const uniform = () => Float32Array.from({ length: n }, () => random() * 2 - 1);
const start = uniform();
const gradients = [uniform(), uniform(), uniform(), uniform()];

/** Runs an update over all gradients, advancing t and the corrections as step-control does. */
function train(update: (control: Float32Array<ArrayBuffer>, g: Float32Array<ArrayBuffer>) => void): void {
  gradients.forEach((g, index) => {
    const t = index + 1;
    update(
      controlWith({ lrFactor: lr, t, biasCorrection1: 1 - 0.9 ** t, sqrtBiasCorrection2: Math.sqrt(1 - 0.999 ** t) }),
      g,
    );
  });
}

describe('adam', () => {
  test.each([
    { weightDecay: 0, decoupled: 0 },
    { weightDecay: 0.1, decoupled: 0 },
    { weightDecay: 0.1, decoupled: 1 },
  ])(
    'follows the paper with bias-corrected moments: $weightDecay, decoupled $decoupled',
    ({ weightDecay, decoupled }) => {
      const [param, m, v] = [start.slice(), new Float32Array(n), new Float32Array(n)];
      train((control, g) => adam.run([param, m, v, g, control], { n, ...adamParams, weightDecay, decoupled }));
      start.forEach((initial, e) => {
        let [p, m1, m2] = [initial, 0, 0];
        gradients.forEach((all, index) => {
          const t = index + 1;
          const g = decoupled ? all[e] : all[e] + weightDecay * p;
          m1 = 0.9 * m1 + 0.1 * g;
          m2 = 0.999 * m2 + 0.001 * g * g;
          if (decoupled) p -= lr * weightDecay * p;
          p -= (lr * (m1 / (1 - 0.9 ** t))) / (Math.sqrt(m2 / (1 - 0.999 ** t)) + 1e-8);
        });
        expect(param[e]).toBeCloseTo(p, 6);
        expect(m[e]).toBeCloseTo(m1, 6);
        expect(v[e]).toBeCloseTo(m2, 6);
      });
    },
  );

  test.each([{ foundInf: 1 }, { halted: 1 }])('changes nothing with %o', (settings) => {
    const views = [start.slice(), uniform(), new Float32Array(n).fill(0.5)];
    const before = views.map((view) => view.slice());
    adam.run([...views, gradients[0], controlWith(settings)], { n, ...adamParams });
    expect(views).toEqual(before);
  });
});

describe('sgd', () => {
  test.each([
    { momentum: 0.9, weightDecay: 0, nesterov: 0 },
    { momentum: 0.9, weightDecay: 0.1, nesterov: 0 },
    { momentum: 0.5, weightDecay: 0.1, nesterov: 1 },
  ])('velocities are the weighted sums of all gradients: %o', (params) => {
    const [param, buf] = [start.slice(), new Float32Array(n).fill(99)];
    train((control, g) => sgd.run([param, buf, g, control], { n, ...plainUpdate, ...params }));
    start.forEach((initial, e) => {
      let p = initial;
      const seen: number[] = [];
      for (const all of gradients) {
        seen.push(all[e] + params.weightDecay * p);
        const velocity = seen.reduce((sum, g, k) => sum + g * params.momentum ** (seen.length - 1 - k), 0);
        p -= lr * (params.nesterov ? seen[seen.length - 1] + params.momentum * velocity : velocity);
      }
      expect(param[e]).toBeCloseTo(p, 6);
    });
  });

  test('without momentum it is a step down the gradient', () => {
    const param = start.slice();
    sgdPlain.run([param, gradients[0], controlWith({ lrFactor: lr })], { n, ...plainUpdate, weightDecay: 0.5 });
    param.forEach((value, e) => {
      expect(value).toBeCloseTo(start[e] - lr * (gradients[0][e] + 0.5 * start[e]), 6);
    });
  });

  test('changes nothing when the step is not finite', () => {
    const [param, buf] = [start.slice(), uniform()];
    const before = buf.slice();
    sgd.run([param, buf, gradients[0], controlWith({ foundInf: 1 })], {
      n,
      ...plainUpdate,
      momentum: 0.9,
      weightDecay: 0,
      nesterov: 0,
    });
    sgdPlain.run([param, gradients[0], controlWith({ halted: 1 })], { n, ...plainUpdate, weightDecay: 0 });
    expect([param, buf]).toEqual([start, before]);
  });
});

describe('step-control', () => {
  const corrections = Float32Array.of(0, 0, 0.5, 0.25, 0.75, 0.125);
  const step = (control: Float32Array<ArrayBuffer>, squares: number, stopOnNonFinite = 1) => {
    stepControl.run([control, Float32Array.of(squares), corrections], { entries: 3, stopOnNonFinite, maxNorm: 0 });
    return (name: keyof typeof CONTROL) => control[CONTROL[name]];
  };

  test('takes the root, counts the step and reads its corrections, the last ones beyond the table', () => {
    const control = controlWith({ t: 0 });
    const read = step(control, 9);
    expect([read('gradNorm'), read('foundInf'), read('halted'), read('t')]).toEqual([3, 0, 0, 1]);
    expect([read('biasCorrection1'), read('sqrtBiasCorrection2')]).toEqual([0.5, 0.25]);
    step(control, 9);
    expect(read('biasCorrection1')).toBe(0.75);
    step(control, 9);
    expect([read('t'), read('biasCorrection1'), read('sqrtBiasCorrection2')]).toEqual([3, 0.75, 0.125]);
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY])('squares of %s stop the run, or only skip the step', (squares) => {
    const stopped = step(controlWith({ t: 1 }), squares);
    expect([stopped('foundInf'), stopped('halted'), stopped('t')]).toEqual([1, 1, 1]);
    const control = controlWith({ t: 1 });
    const skipped = step(control, squares, 0);
    expect([skipped('foundInf'), skipped('halted'), skipped('t')]).toEqual([1, 0, 1]);
    expect(skipped('gradNorm')).toBe(squares);
    step(control, 1, 0);
    expect([skipped('foundInf'), skipped('t')]).toEqual([0, 2]);
  });

  test("a rank's own loss does not decide: the ranks must agree", () => {
    const read = step(controlWith({ loss: Number.NaN }), 1);
    expect([read('foundInf'), read('halted')]).toEqual([0, 0]);
  });

  test('after a halt nothing is counted any more', () => {
    const read = step(controlWith({ t: 1, halted: 1 }), 1);
    expect([read('foundInf'), read('halted'), read('t')]).toEqual([0, 1, 1]);
  });
});

describe('step-advance, and step-norm at the end', () => {
  const corrections = Float32Array.of(0, 0, 0.5, 0.25, 0.75, 0.125);
  const step = (control: Float32Array<ArrayBuffer>, squares: number) => {
    stepAdvance.run([control, corrections], { entries: 3 });
    const opened = control.slice();
    stepNorm.run([control, Float32Array.of(squares)], {});
    return { opened, ended: control };
  };

  test('leave control as step-control does where nothing is clipped', () => {
    for (const t of [0, 1, 5]) {
      const whole = controlWith({ t });
      stepControl.run([whole, Float32Array.of(9), corrections], { entries: 3, stopOnNonFinite: 1, maxNorm: 0 });
      expect(step(controlWith({ t, clip: 0.5, foundInf: 1 }), 9).ended).toEqual(whole);
    }
  });

  test('a loss that is not finite halts the run before anything is updated', () => {
    const { opened } = step(controlWith({ loss: Number.NaN, t: 1 }), 1);
    expect([opened[CONTROL.halted], opened[CONTROL.foundInf], opened[CONTROL.t]]).toEqual([1, 1, 1]);
  });

  test('gradients that are not finite halt it at the end, and nothing is counted any more', () => {
    const { ended } = step(controlWith({ t: 1 }), Number.NaN);
    expect([ended[CONTROL.halted], ended[CONTROL.foundInf], ended[CONTROL.t]]).toEqual([1, 1, 2]);
    expect(ended[CONTROL.gradNorm]).toBeNaN();
    expect(step(ended, 1).ended[CONTROL.t]).toBe(2);
  });
});
