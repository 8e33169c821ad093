import { CATEGORIES, type Category } from '../../engine/schedule/schedule.ts';

/** What each category of memory holds, and its colour, the same wherever it is drawn. */
export const CATEGORY_LOOKS: readonly { category: Category; colour: string; about: string }[] = CATEGORIES.map(
  (category) => ({
    category,
    colour: `var(--cat-${category})`,
    about: {
      parameters: 'this rank’s parameters, or its shard of them',
      gathered: 'whole units, put together for as long as they are used',
      gradients: 'this rank’s gradients, and units’ before they are reduced',
      optimizer: 'state of the optimizer: Adam keeps two numbers for each parameter',
      activations: 'what forward leaves for backward, and what flows between layers',
      workspace: 'scratch space of kernels and collectives, constants, control',
      staging: 'buffers through which ranks and host exchange',
    }[category],
  }),
);
