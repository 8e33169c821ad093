'use client';

import { type KeyboardEvent, type PointerEvent, useEffect, useId, useMemo, useRef, useState } from 'react';
import type { RankTrace } from '../../../engine/trainer/rank-trace.ts';
import { CATEGORY_LOOKS } from '../../_lib/categories.ts';
import { formatBytes, formatMs } from '../../_lib/format.ts';
import {
  LIVE_PX,
  layoutTrace,
  liveAt,
  moveByKey,
  type SlicePlace,
  sliceAt,
  type TraceLayout,
} from '../../_lib/trace-layout.ts';
import { resolveColour, useLookVersion } from '../charts/use-css-colours.ts';
import { Button } from '../ui/button.tsx';
import { drawCursor, drawSelection, drawTrace, outline, RIGHT_PX, type TraceWindow } from './draw-trace.ts';

/** Where the pointer is: a moment, and what is there. */
interface Pointed {
  readonly atMs: number;
  readonly slice: SlicePlace | null;
  /** Over the live bytes of this rank. */
  readonly live: number | null;
}

/** How close to a slice counts as on it, how far a drag is one. */
const REACH_PX = 3;
const DRAG_PX = 6;
const ZOOM = 2;
const KEYS =
  'Left and right move from step to step, up and down from lane to lane, Enter zooms to the step, plus and minus zoom, 0 shows all.';

/** A step of training as lanes over time, for each rank, with its live bytes below. Dragging zooms; so do the keys. */
export function TraceChart({ ranks, step }: { ranks: readonly RankTrace[]; step: number }) {
  const layout = useMemo(() => layoutTrace(ranks), [ranks]);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [widthPx, setWidthPx] = useState(0);
  const [zoom, setZoom] = useState<TraceWindow | null>(null);
  const [pointed, setPointed] = useState<Pointed | null>(null);
  const [chosen, setChosen] = useState<SlicePlace | null>(null);
  const [drag, setDrag] = useState<{ fromMs: number; toMs: number; fromPx: number } | null>(null);
  const look = useLookVersion();
  /** Resolved anew for each look. */
  const colours = useRef({ look, resolved: new Map<string, string>() });
  const hint = useId();
  const gutterPx = widthPx < 520 ? 64 : 80;
  const whole = { fromMs: 0, toMs: layout.totalMs };
  const { fromMs, toMs } = zoom ?? whole;

  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setWidthPx(Math.floor(element.clientWidth)));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext('2d');
    if (!element?.parentElement || !context || widthPx === 0) return;
    const parent = element.parentElement;
    if (colours.current.look !== look) colours.current = { look, resolved: new Map() };
    const { resolved } = colours.current;
    const colour = (css: string): string => {
      const known = resolved.get(css) ?? resolveColour(parent, css);
      resolved.set(css, known);
      return known;
    };
    const scale = devicePixelRatio || 1;
    element.width = Math.round(widthPx * scale);
    element.height = Math.round(layout.heightPx * scale);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const font = `11px ${getComputedStyle(parent).fontFamily}`;
    const surface = { context, widthPx, gutterPx, font, colour, window: { fromMs, toMs } };
    drawTrace(surface, layout);
    if (pointed) drawCursor(surface, layout, pointed.atMs);
    const marked = pointed?.slice ?? chosen;
    if (marked) outline(surface, layout.rows[marked.row], marked.index);
    if (drag) drawSelection(surface, layout, drag.fromMs, drag.toMs);
  }, [layout, widthPx, gutterPx, fromMs, toMs, pointed, chosen, drag, look]);

  /** Not narrower than a microsecond, not beyond the step. */
  const show = (from: number, to: number) => {
    const width = Math.min(layout.totalMs, Math.max(1e-3, to - from));
    const start = Math.min(Math.max(0, from), layout.totalMs - width);
    setZoom(width >= layout.totalMs ? null : { fromMs: start, toMs: start + width });
  };
  const zoomBy = (factor: number) => {
    const slice = chosen ? layout.rows[chosen.row].slices[chosen.index] : null;
    const middle = slice ? (slice.startMs + slice.endMs) / 2 : (fromMs + toMs) / 2;
    const half = ((toMs - fromMs) * factor) / 2;
    show(middle - half, middle + half);
  };
  const choose = (place: SlicePlace) => {
    setChosen(place);
    setPointed(null);
    const slice = layout.rows[place.row].slices[place.index];
    if (slice.endMs < fromMs || slice.startMs > toMs) {
      const half = (toMs - fromMs) / 2;
      show(slice.startMs - half, slice.startMs + half);
    }
  };

  const momentOf = (event: PointerEvent) => {
    const box = event.currentTarget.getBoundingClientRect();
    const share = (event.clientX - box.left - gutterPx) / (widthPx - gutterPx - RIGHT_PX);
    return fromMs + Math.min(1, Math.max(0, share)) * (toMs - fromMs);
  };
  const onMove = (event: PointerEvent) => {
    const atMs = momentOf(event);
    if (drag) setDrag({ ...drag, toMs: atMs });
    const box = event.currentTarget.getBoundingClientRect();
    if (event.clientX - box.left < gutterPx) {
      setPointed(null);
      return;
    }
    const yPx = event.clientY - box.top;
    const reachMs = (REACH_PX * (toMs - fromMs)) / Math.max(1, widthPx - gutterPx);
    const live = layout.ranks.findIndex(({ liveTopPx }) => yPx >= liveTopPx && yPx < liveTopPx + LIVE_PX);
    setPointed({ atMs, slice: sliceAt(layout, yPx, atMs, reachMs), live: live < 0 ? null : live });
  };
  const onDown = (event: PointerEvent) => {
    if (event.button !== 0) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    onMove(event);
    const atMs = momentOf(event);
    setDrag({ fromMs: atMs, toMs: atMs, fromPx: event.clientX });
  };
  const onUp = (event: PointerEvent) => {
    if (drag && Math.abs(event.clientX - drag.fromPx) >= DRAG_PX)
      show(Math.min(drag.fromMs, drag.toMs), Math.max(drag.fromMs, drag.toMs));
    else if (pointed?.slice) setChosen(pointed.slice);
    setDrag(null);
  };

  const onKey = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = moveByKey(layout, chosen, event.key);
    if (to) choose(to);
    else if (event.key === 'Enter' && chosen) {
      const { startMs, endMs } = layout.rows[chosen.row].slices[chosen.index];
      const marginMs = Math.max((endMs - startMs) / 2, 1e-3);
      show(startMs - marginMs, endMs + marginMs);
    } else if (event.key === '+' || event.key === '=') zoomBy(1 / ZOOM);
    else if (event.key === '-') zoomBy(ZOOM);
    else if (event.key === '0') setZoom(null);
    else if (event.key === 'Escape') {
      setChosen(null);
      setZoom(null);
    } else return;
    event.preventDefault();
  };

  return (
    <div>
      <div className="mb-2 flex flex-wrap items-start gap-x-3 gap-y-2">
        <Reading layout={layout} pointed={pointed} chosen={chosen} />
        <div className="flex gap-1">
          <Button look="quiet" size="icon" aria-label="Zoom in" title="Zoom in (+)" onClick={() => zoomBy(1 / ZOOM)}>
            +
          </Button>
          <Button
            look="quiet"
            size="icon"
            aria-label="Zoom out"
            title="Zoom out (−)"
            disabled={!zoom}
            onClick={() => zoomBy(ZOOM)}
          >
            −
          </Button>
          <Button look="quiet" disabled={!zoom} title="Show the whole step (0)" onClick={() => setZoom(null)}>
            All
          </Button>
        </div>
      </div>
      <div
        role="application"
        aria-roledescription="trace"
        aria-label={`Lanes of step ${step} over time, ${ranks.length === 1 ? 'one rank' : `${ranks.length} ranks`}`}
        aria-describedby={hint}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: it is moved through with the keys.
        tabIndex={0}
        onKeyDown={onKey}
        className="touch-pan-y rounded-sm"
        data-testid="trace"
      >
        <canvas
          ref={canvas}
          height={layout.heightPx}
          style={{ height: layout.heightPx }}
          className="block w-full cursor-crosshair"
          onPointerMove={onMove}
          onPointerLeave={() => setPointed(null)}
          onPointerDown={onDown}
          onPointerUp={onUp}
          onPointerCancel={() => setDrag(null)}
          onDoubleClick={() => setZoom(null)}
        />
      </div>
      <p id={hint} className="mt-2 text-2xs text-faint">
        Drag to zoom, double-click for all. {KEYS}
      </p>
    </div>
  );
}

/** What is under the pointer or chosen, in words; at rest, what there is to see. */
function Reading({
  layout,
  pointed,
  chosen,
}: {
  layout: TraceLayout;
  pointed: Pointed | null;
  chosen: SlicePlace | null;
}) {
  const place = pointed ? pointed.slice : chosen;
  const text = place
    ? sliceWords(layout, place)
    : pointed
      ? momentWords(layout, pointed)
      : {
          title: `${formatMs(layout.totalMs)} from the first step to the last`,
          about: 'Point at a step, or use the keys.',
        };
  return (
    <div className="min-h-10 min-w-0 flex-1 basis-64" aria-live="polite" data-testid="trace-reading">
      <p className="font-medium">{text.title}</p>
      <p className="text-xs text-muted">{text.about}</p>
    </div>
  );
}

interface Words {
  readonly title: string;
  readonly about: string;
}

function sliceWords(layout: TraceLayout, { row, index }: SlicePlace): Words {
  const { rank, slices } = layout.rows[row];
  const slice = slices[index];
  const of = layout.ranks.find(({ trace }) => trace.rank === rank)!;
  const { label, unit, lane, phase, liveBytes } = of.trace.steps[slice.step];
  const lasted = formatMs(slice.endMs - slice.startMs);
  const at = `from ${formatMs(slice.startMs)}`;
  const name = label.includes(unit) ? label : `${label} of ${unit}`;
  if (slice.kind === 'wait')
    return {
      title: `waits ${lasted} for ${slice.for}`,
      about: `rank ${rank} · ${lane} · ${slice.inside ? 'inside' : 'before'} step ${slice.step}, ${name} · ${at}`,
    };
  return {
    title: `${name}, ${lasted}`,
    about: `rank ${rank} · ${lane} · step ${slice.step} · ${phase} · ${at} · ${formatBytes(liveBytes)} live in the plan`,
  };
}

function momentWords(layout: TraceLayout, { atMs, live }: Pointed): Words {
  if (live === null) return { title: formatMs(atMs), about: 'Nothing runs in this lane.' };
  const rank = layout.ranks[live];
  const bytes = liveAt(rank, atMs);
  const total = bytes.reduce((sum, value) => sum + value, 0);
  const split = CATEGORY_LOOKS.map(({ category }, i) => ({ category, bytes: bytes[i] })).filter((one) => one.bytes > 0);
  return {
    title: `${formatBytes(total)} live on rank ${rank.trace.rank} at ${formatMs(atMs)}`,
    about: split.map((one) => `${one.category} ${formatBytes(one.bytes)}`).join(' · '),
  };
}
