'use client';

import './known-language.ts';
import { type ReactNode, useEffect, useMemo, useRef, useState } from 'react';
import uPlot from 'uplot';
import { type ChartColumn, stack } from '../../_lib/chart-data.ts';
import { NONE } from '../../_lib/format.ts';
import { Dot } from '../ui/segmented.tsx';
import { ChartNoteText } from './chart-note.tsx';
import { resolveColour, useLookVersion } from './use-css-colours.ts';

export interface ChartSeries {
  readonly label: string;
  /** Any CSS colour, variables too. */
  readonly colour: string;
  readonly values: ChartColumn;
  /** Areas are stacked in the order given, the first at the bottom; lines are drawn over them. */
  readonly kind: 'line' | 'area';
  readonly widthPx?: number;
  readonly dash?: readonly number[];
  /** Has a value only now and then: the values are joined, and marked. */
  readonly sparse?: boolean;
  /** Left out of the legend: a line that stands for a member of a group. */
  readonly quiet?: boolean;
}

/** A value drawn as a dashed line across the whole chart, and named below it: a name on the chart would lie over the rest. */
export interface ChartLevel {
  readonly value: number;
  readonly label: string;
  readonly colour: string;
}

/** A part of the x axis with a name: a phase. */
export interface ChartRegion {
  readonly from: number;
  readonly to: number;
  readonly label: string;
}

/** A row of coloured spans under the x axis. */
export interface ChartLane {
  readonly label: string;
  readonly spans: readonly { readonly from: number; readonly to: number; readonly colour: string }[];
}

const X_AXIS_PX = 26;
const LANE_PX = 9;
const LANE_GAP_PX = 3;
/** "compute", the longest, in the lanes' font. */
const LANE_NAME_PX = 56;
const lanesHeightPx = (lanes: readonly ChartLane[] = []) =>
  lanes.length ? lanes.length * (LANE_PX + LANE_GAP_PX) + LANE_GAP_PX : 0;

interface ChartProps {
  readonly title: string;
  /** What the chart shows, in words, for who does not see it. */
  readonly summary: string;
  readonly x: readonly number[];
  readonly series: readonly ChartSeries[];
  readonly format: (value: number) => string;
  /** What x is at an index: "step 12". */
  readonly formatX: (index: number) => string;
  readonly heightPx?: number;
  readonly fromZero?: boolean;
  /** Values hold until the next x, as memory does; else they are joined. */
  readonly stepped?: boolean;
  readonly levels?: readonly ChartLevel[];
  readonly regions?: readonly ChartRegion[];
  /** What the readings are of while nothing is pointed at: an index; the last one if left out. */
  readonly restAt?: number;
  /** The top of the y axis, for charts that share a scale. */
  readonly maxY?: number;
  readonly legend?: boolean;
  /** Rows under the x axis: what goes on in parallel. */
  readonly lanes?: readonly ChartLane[];
  readonly aside?: ReactNode;
  readonly empty?: string;
}

/**
 * A time series over uPlot: stacked areas, lines, levels and named regions, with a legend that reads the values under the
 * pointer, or the last ones. Dragging zooms in x; the zoom outlives new data, a new theme and a new size.
 */
export function Chart(props: ChartProps) {
  const { x, series, heightPx = 220 } = props;
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const zoom = useRef<[number, number] | null>(null);
  const [zoomed, setZoomed] = useState(false);
  const [hover, setHover] = useState<number | null>(null);
  const look = useLookVersion();
  const latest = useRef(props);

  // Painted from the top of the stack down, each over the one before, then the lines.
  const drawn = useMemo(() => {
    const areas = series.filter(({ kind }) => kind === 'area');
    const sums = stack(areas.map(({ values }) => values));
    return [
      ...areas.map((area, i) => ({ ...area, values: sums[i] })).reverse(),
      ...series.filter(({ kind }) => kind === 'line'),
    ];
  }, [series]);
  const shape = JSON.stringify([
    drawn.map(({ label, colour, kind, widthPx, dash }) => [label, colour, kind, widthPx, dash]),
    heightPx,
    props.stepped,
    x.length > 0,
    props.lanes?.length,
  ]);
  const data = useMemo((): uPlot.AlignedData => [x as number[], ...drawn.map(({ values }) => values)], [x, drawn]);
  const latestData = useRef(data);
  const latestDrawn = useRef(drawn);

  useEffect(() => {
    latest.current = props;
    latestData.current = data;
    latestDrawn.current = drawn;
  });

  // biome-ignore lint/correctness/useExhaustiveDependencies: `shape` stands for the series, `look` for the theme.
  useEffect(() => {
    const element = box.current;
    if (!element || !latest.current.x.length) return;
    const made = new uPlot(
      options(
        element,
        latest,
        latestDrawn.current,
        heightPx,
        (range) => {
          zoom.current = range;
          setZoomed(range !== null);
        },
        setHover,
      ),
      latestData.current,
      element,
    );
    plot.current = made;
    if (zoom.current) made.setScale('x', { min: zoom.current[0], max: zoom.current[1] });
    const observer = new ResizeObserver(() => {
      const width = Math.floor(element.clientWidth);
      if (width > 0 && width !== made.width) made.setSize({ width, height: heightPx });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, look, heightPx]);

  useEffect(() => {
    const made = plot.current;
    if (!made || made.data === data) return;
    made.batch(() => {
      made.setData(data);
      if (zoom.current) made.setScale('x', { min: zoom.current[0], max: zoom.current[1] });
    });
  }, [data]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: levels and regions are read while drawing.
  useEffect(() => {
    // Before its first frame it has no scales to keep, and draws these anyway.
    if (plot.current?.status === 1) plot.current.redraw(false, true);
  }, [props.levels, props.regions, props.lanes, props.maxY]);

  const resetZoom = () => {
    zoom.current = null;
    setZoomed(false);
    plot.current?.setData(latestData.current);
  };

  const index = hover !== null && hover < x.length ? hover : (props.restAt ?? x.length - 1);
  return (
    <figure className="min-w-0">
      <figcaption className="mb-2 flex flex-wrap items-baseline gap-x-3">
        <span className="shrink-0 font-semibold">{props.title}</span>
        <ChartNoteText />
        {x.length ? (
          <span className="min-w-0 flex-1 basis-40 truncate text-xs text-faint">{props.formatX(index)}</span>
        ) : null}
        {zoomed ? (
          <button
            type="button"
            onClick={resetZoom}
            className="shrink-0 rounded px-1.5 text-xs text-accent hover:bg-hover"
          >
            Reset zoom
          </button>
        ) : null}
        {props.aside ? <span className="ml-auto">{props.aside}</span> : null}
      </figcaption>
      {x.length ? (
        <>
          <div ref={box} role="img" aria-label={props.summary} className="w-full min-w-0" />
          <Legend
            series={props.legend === false ? [] : series}
            levels={props.levels ?? []}
            index={index}
            resting={hover === null}
            format={props.format}
          />
        </>
      ) : (
        <div className="grid place-items-center rounded-lg border border-dashed border-line text-faint" data-empty>
          <p className={heightPx > 240 ? 'py-28' : 'py-20'}>{props.empty ?? 'Nothing yet'}</p>
        </div>
      )}
    </figure>
  );
}

function Legend({
  series,
  levels,
  index,
  resting,
  format,
}: {
  series: readonly ChartSeries[];
  levels: readonly ChartLevel[];
  index: number;
  resting: boolean;
  format: (value: number) => string;
}) {
  if (!series.length && !levels.length) return null;
  return (
    <ul className="mt-1.5 flex flex-wrap gap-x-3.5 gap-y-1 text-xs">
      {series
        .filter(({ quiet }) => !quiet)
        .map(({ label, colour, kind, values }) => {
          // At rest a series that ended earlier shows its own last value.
          const value = values[index] ?? (resting ? values.findLast((v) => v !== null) : null) ?? null;
          return (
            <li key={label} className="flex items-center gap-1.5 whitespace-nowrap">
              <Dot colour={colour} square={kind === 'area'} />
              <span className="text-muted">{label}</span>
              <span className="font-medium">{value === null ? NONE : format(value)}</span>
            </li>
          );
        })}
      {levels.map(({ label, colour }) => (
        <li key={label} className="flex items-center gap-1.5 whitespace-nowrap text-muted">
          <svg viewBox="0 0 14 8" className="h-2 w-3.5 shrink-0" aria-hidden="true">
            <line x1="0" x2="14" y1="4" y2="4" stroke={colour} strokeWidth="1.5" strokeDasharray="4 2" />
          </svg>
          {label}
        </li>
      ))}
    </ul>
  );
}

function options(
  element: HTMLElement,
  latest: { readonly current: ChartProps },
  drawn: readonly ChartSeries[],
  heightPx: number,
  onZoom: (range: [number, number] | null) => void,
  onHover: (index: number | null) => void,
): uPlot.Options {
  // For the life of this plot: a new look makes a new one.
  const resolved = new Map<string, string>();
  const colour = (css: string): string => {
    const known = resolved.get(css) ?? resolveColour(element, css);
    resolved.set(css, known);
    return known;
  };
  const [faint, line, panel] = ['var(--faint)', 'var(--line)', 'var(--panel)'].map(colour);
  const font = `11px ${getComputedStyle(element).fontFamily}`;
  const stepped = uPlot.paths.stepped?.({ align: 1 });
  const pxRatio = () => devicePixelRatio || 1;
  return {
    width: Math.max(120, Math.floor(element.clientWidth)),
    height: heightPx,
    padding: [latest.current.regions ? 18 : 10, 8, lanesHeightPx(latest.current.lanes), 0],
    legend: { show: false },
    cursor: {
      points: { size: 7, width: 1.5, fill: panel },
      drag: { x: true, y: false, dist: 6 },
      focus: { prox: -1 },
    },
    scales: {
      x: {
        time: false,
        // One single step still has a width.
        range: (_u, min, max) => (min === max ? [min - 0.5, max + 0.5] : [min, max]),
      },
      y: {
        range: (_u, min, max) => yRange(min, max, latest.current),
      },
    },
    axes: [
      {
        stroke: faint,
        font,
        grid: { show: false },
        ticks: { stroke: line, size: 4, width: 1 },
        size: X_AXIS_PX,
        gap: 3,
        space: 56,
        values: (_u, splits) => splits.map((v) => (Number.isInteger(v) ? v.toLocaleString('en-US') : '')),
      },
      {
        stroke: faint,
        font,
        grid: { stroke: line, width: 1 },
        ticks: { show: false },
        gap: 6,
        space: 26,
        // Beside the lanes stand their names.
        size: (_u, values) =>
          Math.min(
            92,
            Math.max(
              latest.current.lanes?.length ? LANE_NAME_PX : 36,
              ...(values ?? []).map((v) => (v ?? '').length * 6.4 + 12),
            ),
          ),
        splits: (_u, _axis, min, max, increment) => niceSplits(min, max, increment, latest.current),
        values: (_u, splits) => splits.map((v) => shortTick(latest.current.format(v))),
      },
    ],
    series: [
      {},
      ...drawn.map((one): uPlot.Series => {
        const stroke = colour(one.colour);
        const area = one.kind === 'area';
        return {
          label: one.label,
          stroke,
          width: one.widthPx ?? (area ? 1 : 1.6),
          dash: one.dash ? [...one.dash] : undefined,
          fill: area ? colour(areaColour(one.colour)) : undefined,
          paths: latest.current.stepped ? stepped : undefined,
          points: { show: (u: uPlot) => one.sparse || (!area && u.data[0].length === 1), size: 6, fill: stroke },
          spanGaps: one.sparse ?? false,
        };
      }),
    ],
    hooks: {
      drawClear: [
        (u) => {
          const { regions = [] } = latest.current;
          const { ctx } = u;
          ctx.save();
          ctx.font = `${11 * pxRatio()}px ${getComputedStyle(element).fontFamily}`;
          ctx.textBaseline = 'top';
          ctx.textAlign = 'left';
          regions.forEach(({ from, to, label }, i) => {
            const left = Math.max(u.bbox.left, u.valToPos(from, 'x', true));
            const right = Math.min(u.bbox.left + u.bbox.width, u.valToPos(to, 'x', true));
            if (right <= left) return;
            if (i % 2 === 1) {
              ctx.fillStyle = colour('var(--sunken)');
              ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
            }
            if (ctx.measureText(label).width + 8 * pxRatio() > right - left) return;
            ctx.fillStyle = faint;
            ctx.fillText(label, left + 2 * pxRatio(), u.bbox.top - 15 * pxRatio());
          });
          ctx.restore();
        },
      ],
      draw: [
        (u) => {
          drawLanes(u, latest.current.lanes ?? [], pxRatio(), faint, colour);
        },
        (u) => {
          const { ctx } = u;
          ctx.save();
          for (const { value, colour: css } of latest.current.levels ?? []) {
            const y = Math.round(u.valToPos(value, 'y', true));
            if (y < u.bbox.top || y > u.bbox.top + u.bbox.height) continue;
            ctx.strokeStyle = colour(css);
            ctx.lineWidth = 1.5 * pxRatio();
            ctx.setLineDash([5 * pxRatio(), 4 * pxRatio()]);
            ctx.beginPath();
            ctx.moveTo(u.bbox.left, y);
            ctx.lineTo(u.bbox.left + u.bbox.width, y);
            ctx.stroke();
          }
          ctx.restore();
        },
      ],
      setCursor: [(u) => onHover(u.cursor.idx ?? null)],
      setSelect: [
        (u) => {
          if (u.select.width > 0)
            onZoom([u.posToVal(u.select.left, 'x'), u.posToVal(u.select.left + u.select.width, 'x')]);
        },
      ],
      ready: [
        (u) => {
          u.over.addEventListener('dblclick', () => onZoom(null));
        },
      ],
    },
  };
}

function drawLanes(
  u: uPlot,
  lanes: readonly ChartLane[],
  ratio: number,
  ink: string,
  colour: (css: string) => string,
): void {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.textAlign = 'right';
  ctx.textBaseline = 'middle';
  lanes.forEach(({ label, spans }, i) => {
    const top = bbox.top + bbox.height + (X_AXIS_PX + LANE_GAP_PX + i * (LANE_PX + LANE_GAP_PX)) * ratio;
    ctx.font = `${10 * ratio}px ${getComputedStyle(u.root).fontFamily}`;
    ctx.fillStyle = ink;
    ctx.fillText(label, bbox.left - 6 * ratio, top + (LANE_PX / 2) * ratio);
    for (const { from, to, colour: css } of spans) {
      const left = Math.max(bbox.left, u.valToPos(from, 'x', true));
      const right = Math.min(bbox.left + bbox.width, u.valToPos(to, 'x', true));
      if (right <= left) continue;
      ctx.fillStyle = colour(css);
      ctx.fillRect(left, top, Math.max(1, right - left), LANE_PX * ratio);
    }
  });
  ctx.restore();
}

/** An area is its line's colour, thinned by the panel: less on dark, where thinning muddies. */
function areaColour(colour: string): string {
  return `light-dark(color-mix(in oklab, ${colour} 64%, var(--panel)), color-mix(in oklab, ${colour} 80%, var(--panel)))`;
}

/** The y axis: all that is drawn, with a little air; a level only when it does not press the rest flat. */
function yRange(min: number | null, max: number | null, { levels = [], fromZero, maxY }: ChartProps): [number, number] {
  if (maxY) return [0, maxY];
  let low = min ?? 0;
  let high = max ?? 1;
  for (const { value } of levels) if (value <= high * 1.8) high = Math.max(high, value);
  if (fromZero) return [0, high > 0 ? high * 1.12 : 1];
  for (const { value } of levels) low = Math.min(low, value);
  const air = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - air, high + air];
}

/** "12.5000" as "12.5", "0.00 ms" as "0 ms". */
const shortTick = (text: string) => text.replace(/(\.\d*?)0+(?=\D|$)/, '$1').replace(/\.(?=\D|$)/, '');

const BYTES_UNITS = [1, 2 ** 10, 2 ** 20, 2 ** 30, 2 ** 40];

/** Ticks at round numbers; of bytes, at round numbers of the unit they are printed in. */
function niceSplits(min: number, max: number, increment: number, { format }: ChartProps): number[] {
  const bytes = / (KiB|MiB|GiB|TiB)$/.test(format(max));
  let step = increment;
  if (bytes) {
    const unit = BYTES_UNITS.findLast((size) => size <= max) ?? 1;
    const rough = increment / unit;
    const power = 10 ** Math.floor(Math.log10(rough));
    step = ([1, 2, 2.5, 5, 10].find((n) => n * power >= rough * 0.999) ?? 10) * power * unit;
  }
  const splits: number[] = [];
  for (let at = Math.ceil(min / step) * step; at <= max; at += step) splits.push(Math.abs(at) < step / 1e6 ? 0 : at);
  return splits;
}
