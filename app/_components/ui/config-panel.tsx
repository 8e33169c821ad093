import { toYaml } from '../../_lib/config-draft.ts';
import { CopyButton } from './copy-button.tsx';
import { ScrollRegion } from './scroll-region.tsx';

/** A config as YAML, to read and to copy; `height` is the class of the height from which it scrolls. */
export function ConfigPanel({ config, height }: { config: unknown; height: string }) {
  const yaml = toYaml(config);
  return (
    <section className="panel min-w-0 p-4 sm:p-5" aria-label="Config">
      <div className="mb-2 flex items-center justify-between">
        <h2 className="font-semibold">Config</h2>
        <CopyButton text={yaml} label="Copy YAML" />
      </div>
      <ScrollRegion label="Config as YAML" className={`${height} rounded-lg bg-sunken p-3`}>
        <pre className="font-mono text-xs/5">{yaml}</pre>
      </ScrollRegion>
    </section>
  );
}
