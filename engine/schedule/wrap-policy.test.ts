import { expect, it } from 'vitest';
import { demoTransformer } from '../model/demo-transformer.ts';
import { wrappedPaths } from './wrap-policy.ts';

/**
 * Units by size, as PyTorch's size_based_auto_wrap_policy makes them, worked out by hand: a module is looked into when it
 * has at least so many elements, unless it is an attention; then it is wrapped when what its units leave of it is as many,
 * unless it is a list.
 *
 * Vocabulary 21, width 8, feed-forward 12. Embedding 168, head 189, norm 16, attention 288 (its out_proj 72), linear1 108,
 * linear2 104: an encoder layer has 288 + 108 + 104 + 2 · 16 = 532, a decoder layer 2 · 288 + 108 + 104 + 3 · 16 = 836.
 */
const demo = (nlayers: number) => demoTransformer({ vocabSize: 21, ninp: 8, nhead: 2, nhid: 12, nlayers, dropout: 0 });
const encoder = 'transformer.encoder';
const decoder = 'transformer.decoder';
const layers = [`${encoder}.layers.0`, `${decoder}.layers.0`];
const parts = (layer: string, ...names: string[]) => names.map((name) => `${layer}.${name}`);

it.each([
  // The whole model has 1757, but the root is no unit of its own; the inner transformer has 1400.
  [1757, []],
  [1401, []],
  // 852 of the decoder are looked into, its only layer of 836 is too small; 548 of the transformer are left.
  [852, [decoder]],
  // The layer itself; what the decoder and the transformer have left (16 and 564) is too little.
  [836, [layers[1]]],
  // Of the transformer 1400 − 836 = 564 are left.
  [564, ['transformer', layers[1]]],
  // The encoder has 548, its layer 532; the list of its one layer has 532 too.
  [548, [encoder, layers[1]]],
  [532, layers],
  // An attention of 288 is no unit, nor is it taken from its layer.
  [288, layers],
  [200, layers],
  // The head has 189, the embedding 168.
  [189, [...layers, 'decoder']],
  [168, ['embedding', ...layers, 'decoder']],
  // A layer keeps its attention, its norms and linear2: 424 and 728.
  [108, ['embedding', layers[0], ...parts(layers[0], 'linear1'), layers[1], ...parts(layers[1], 'linear1'), 'decoder']],
  [104, ['embedding', ...layers.flatMap((layer) => [layer, ...parts(layer, 'linear1', 'linear2')]), 'decoder']],
  // The out_proj of an attention has 72 and is never reached; encoder and decoder have nothing left.
  [
    1,
    [
      'embedding',
      layers[0],
      ...parts(layers[0], 'linear1', 'linear2', 'norm1', 'norm2'),
      `${encoder}.norm`,
      layers[1],
      ...parts(layers[1], 'linear1', 'linear2', 'norm1', 'norm2', 'norm3'),
      `${decoder}.norm`,
      'decoder',
    ],
  ],
])('one layer each, at least %i elements', (minNumParams, units) => {
  expect(wrappedPaths(demo(1), { minNumParams }).sort()).toEqual([...units].sort());
});

it.each([
  // The list of the encoder's layers has 1064 and is never a unit, the encoder has 1080, the decoder 1688.
  [1064, [encoder, decoder]],
  [837, [encoder, decoder]],
  // The decoder's two layers are units, which leave it 16. The encoder's are too small, so that it is one itself.
  [836, [encoder, `${decoder}.layers.0`, `${decoder}.layers.1`]],
  // Where the encoder is too small, of the transformer 2768 − 1688 = 1080 are left, too few as well.
  [1089, [decoder]],
])('two layers each, at least %i elements', (minNumParams, units) => {
  expect(wrappedPaths(demo(2), { minNumParams }).sort()).toEqual([...units].sort());
});
