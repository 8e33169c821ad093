import { corpusInfo } from '../../../engine/data/corpus.ts';
import { prepareCorpus } from '../../../engine/node/corpus.ts';
import type { CorpusInfo } from '../../contract.ts';
import { confine } from '../../data-folder.ts';
import { RequestError } from '../errors.ts';
import { queryInteger, type Route } from '../router.ts';
import type { Services } from '../services.ts';

/** How large a text is once it is tokens; the first question prepares it. */
export function corpusRoutes({ folder }: Services): Route[] {
  return [
    {
      method: 'GET',
      path: '/corpora',
      async handle({ query }) {
        const kind = query.get('kind');
        const path = query.get('path');
        const blockSize = queryInteger(query, 'blockSize', 35, { min: 1, max: 65_536 });
        const tokenizer = query.get('tokenizer') ?? 'word';
        if (tokenizer !== 'word' && tokenizer !== 'gpt2')
          throw new RequestError('bad-request', 'tokenizer is word or gpt2.');
        if (kind !== 'moby-dick' && kind !== 'wikitext2')
          throw new RequestError('bad-request', 'kind is moby-dick or wikitext2.');
        if (kind === 'wikitext2' && !path) throw new RequestError('bad-request', 'wikitext2 needs the path of a text.');
        // Null stands for the built-in text.
        const file = kind === 'moby-dick' ? null : await confine(folder.root, path ?? '');
        const corpus = await prepareCorpus(
          file === null ? { kind: 'moby-dick', tokenizer } : { kind: 'wikitext2', path: file, tokenizer },
          folder.corpora,
        );
        const body: CorpusInfo = { ...corpusInfo(corpus, blockSize), path: file === null ? null : path };
        return { status: 200, body };
      },
    },
  ];
}
