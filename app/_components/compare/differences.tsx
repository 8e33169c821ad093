import type { Comparison } from '../../../server/contract.ts';
import { type DifferingField, differingFields } from '../../_lib/comparison-table.ts';
import { NONE } from '../../_lib/format.ts';
import { ScrollRegion } from '../ui/scroll-region.tsx';
import { Dot } from '../ui/segmented.tsx';

/** What differs in the runs' configs: what decides their figures, and, folded away, what does not. */
export function Differences(props: { comparison: Comparison; colourOf: (id: string) => string }) {
  const { telling, aside } = differingFields(props.comparison);
  return (
    <section className="panel p-4 sm:p-5" aria-label="Differing config fields">
      <h2 className="font-semibold">What differs in their configs</h2>
      {telling.length ? (
        <FieldTable {...props} label="Differing config fields" fields={telling} />
      ) : (
        <p className="mt-1 text-muted">Nothing that decides what is computed or what it costs.</p>
      )}
      {aside.length ? (
        <details className="group mt-3">
          <summary className="inline-flex list-none items-baseline gap-1.5 rounded text-xs text-muted hover:text-ink">
            <span aria-hidden="true" className="inline-block transition-transform group-open:rotate-90">
              ›
            </span>
            {aside.length} more that decide none of these figures: names, saving, defaults of one strategy
          </summary>
          <FieldTable {...props} label="Other differing config fields" fields={aside} />
        </details>
      ) : null}
    </section>
  );
}

function FieldTable(props: {
  comparison: Comparison;
  colourOf: (id: string) => string;
  label: string;
  fields: readonly DifferingField[];
}) {
  const { runs } = props.comparison;
  return (
    <ScrollRegion label={`${props.label} as a table`} className="mt-2">
      <table className="block w-full text-xs md:table" aria-label={props.label}>
        <thead className="hidden md:table-header-group">
          <tr className="caps">
            <th scope="col" className="py-1 text-left font-medium">
              Field
            </th>
            {runs.map(({ run }) => (
              <th key={run.id} scope="col" className="py-1 pl-4 text-left font-medium">
                <span className="flex items-center gap-1.5">
                  <Dot colour={props.colourOf(run.id)} />
                  {run.name}
                </span>
              </th>
            ))}
          </tr>
        </thead>
        <tbody className="block font-mono md:table-row-group">
          {props.fields.map(({ path, values }) => (
            <tr key={path} className="block border-t border-line py-1.5 md:table-row md:py-0">
              <th scope="row" className="block text-left font-normal text-muted md:table-cell md:py-1.5 md:pr-3">
                {path}
              </th>
              {values.map((value, i) => (
                <td
                  key={runs[i].run.id}
                  className="flex items-baseline gap-2 py-0.5 wrap-anywhere md:table-cell md:py-1.5 md:pl-4"
                >
                  <span className="md:hidden">
                    <Dot colour={props.colourOf(runs[i].run.id)} />
                  </span>
                  <span title={value} className={value === NONE ? 'text-faint' : 'rounded bg-warn-soft px-1'}>
                    {shortPath(value)}
                  </span>
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </ScrollRegion>
  );
}

/** Of a long path, the end: that tells files apart. */
function shortPath(value: string): string {
  const parts = value.split('/');
  return parts.length > 3 ? `…/${parts.slice(-2).join('/')}` : value;
}
