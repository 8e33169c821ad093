import { CATEGORY_LOOKS } from '../../_lib/categories.ts';
import { formatBytes, formatMs } from '../../_lib/format.ts';
import {
  AXIS_PX,
  LIVE_PX,
  type RankLayout,
  ROW_PX,
  stepColour,
  TITLE_PX,
  type TraceLayout,
  type TraceRow,
  ticksOf,
  uncoveredUntilMs,
} from '../../_lib/trace-layout.ts';

/** The part of a trace that is seen. */
export interface TraceWindow {
  readonly fromMs: number;
  readonly toMs: number;
}

export interface TraceSurface {
  readonly context: CanvasRenderingContext2D;
  readonly widthPx: number;
  /** Left of the lanes: their names. */
  readonly gutterPx: number;
  readonly window: TraceWindow;
  readonly font: string;
  /** A CSS colour as the canvas takes it. */
  readonly colour: (css: string) => string;
}

export const RIGHT_PX = 8;

/** Where a moment is drawn. */
export function xOf({ widthPx, gutterPx, window: { fromMs, toMs } }: Omit<TraceSurface, 'context'>, ms: number) {
  return gutterPx + ((ms - fromMs) / (toMs - fromMs)) * (widthPx - gutterPx - RIGHT_PX);
}

/** Draws all of a trace but what is pointed at. */
export function drawTrace(surface: TraceSurface, layout: TraceLayout): void {
  const { context, widthPx, gutterPx, font } = surface;
  context.clearRect(0, 0, widthPx, layout.heightPx);
  context.font = font;
  context.textBaseline = 'middle';
  drawGrid(surface, layout);
  for (const rank of layout.ranks) drawTitle(surface, rank);
  const hatch = hatchOf(surface);
  for (const row of layout.rows) {
    label(surface, row.label, row.topPx + ROW_PX / 2);
    inLanes(surface, row.topPx, ROW_PX, () => drawRow(surface, layout, row, hatch));
  }
  for (const rank of layout.ranks) {
    label(surface, 'live', rank.liveTopPx + 7);
    const most = formatBytes(rank.mostLiveBytes);
    if (gutterPx > 70) label(surface, most, rank.liveTopPx + 23);
    inLanes(surface, rank.liveTopPx, LIVE_PX, () => drawLive(surface, rank));
  }
}

/** Marks a slice: pointed at, or chosen by the keys. */
export function outline(surface: TraceSurface, row: TraceRow, index: number): void {
  const { context, colour } = surface;
  const { startMs, endMs } = row.slices[index];
  const [from, to] = [xOf(surface, startMs), xOf(surface, endMs)];
  inLanes(surface, row.topPx - 2, ROW_PX + 4, () => {
    context.strokeStyle = colour('var(--ink)');
    context.lineWidth = 2;
    context.strokeRect(from - 1, row.topPx - 1, Math.max(3, to - from) + 2, ROW_PX + 2);
  });
}

/** A line through all lanes at a moment. */
export function drawCursor(surface: TraceSurface, layout: TraceLayout, ms: number): void {
  const { context, colour } = surface;
  context.fillStyle = colour('var(--muted)');
  context.globalAlpha = 0.6;
  context.fillRect(Math.round(xOf(surface, ms)), 0, 1, layout.heightPx - AXIS_PX);
  context.globalAlpha = 1;
}

/** What is about to be zoomed to. */
export function drawSelection(surface: TraceSurface, layout: TraceLayout, fromMs: number, toMs: number): void {
  const { context, colour } = surface;
  const [from, to] = [xOf(surface, Math.min(fromMs, toMs)), xOf(surface, Math.max(fromMs, toMs))];
  context.globalAlpha = 0.16;
  context.fillStyle = colour('var(--accent)');
  context.fillRect(from, 0, to - from, layout.heightPx - AXIS_PX);
  context.globalAlpha = 1;
}

function drawGrid(surface: TraceSurface, { heightPx }: TraceLayout): void {
  const { context, widthPx, gutterPx, window, colour } = surface;
  const bottom = heightPx - AXIS_PX;
  context.textAlign = 'center';
  for (const ms of ticksOf(window.fromMs, window.toMs, (widthPx - gutterPx) / 84)) {
    const x = Math.round(xOf(surface, ms));
    context.fillStyle = colour('var(--line)');
    context.fillRect(x, 0, 1, bottom + 4);
    context.fillStyle = colour('var(--faint)');
    const text = ms === 0 ? '0' : tickWords(ms, window);
    const half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(widthPx - half, Math.max(half, x)), bottom + 14);
  }
}

/** Deep in a zoom neighbours differ in the third digit and beyond. */
function tickWords(ms: number, { fromMs, toMs }: TraceWindow): string {
  const widthMs = toMs - fromMs;
  if (widthMs >= ms / 20) return formatMs(ms);
  const digits = Math.max(0, 1 - Math.floor(Math.log10(widthMs / 10)));
  return `${ms.toFixed(Math.min(6, digits))} ms`;
}

/** A rank's name, and its phases over the lanes. */
function drawTitle(surface: TraceSurface, { trace, topPx, phases }: RankLayout): void {
  const { context, colour, font, gutterPx } = surface;
  context.textAlign = 'left';
  context.fillStyle = colour('var(--ink)');
  context.font = `600 ${font}`;
  context.fillText(`rank ${trace.rank}`, 0, topPx + TITLE_PX / 2 - 1);
  context.font = font;
  inLanes(surface, topPx, TITLE_PX, () => {
    for (const phase of phases) {
      const [from, to] = [xOf(surface, phase.startMs), xOf(surface, phase.endMs)];
      const left = Math.max(from, gutterPx);
      context.fillStyle = colour('var(--line-strong)');
      context.fillRect(from, topPx + TITLE_PX - 6, Math.max(1, to - from - 1), 2);
      context.fillRect(from, topPx + TITLE_PX - 6, 1, 6);
      context.fillStyle = colour('var(--muted)');
      if (to - left > context.measureText(phase.label).width + 6)
        context.fillText(phase.label, left + 2, topPx + TITLE_PX / 2 - 4);
    }
  });
}

function drawRow(surface: TraceSurface, layout: TraceLayout, row: TraceRow, hatch: CanvasPattern | null): void {
  const { context, widthPx, gutterPx, window, colour } = surface;
  const { steps } = layout.ranks.find(({ trace }) => trace.rank === row.rank)!.trace;
  context.fillStyle = colour('var(--sunken)');
  context.fillRect(gutterPx, row.topPx, widthPx, ROW_PX);
  context.textAlign = 'left';
  let painted = '';
  const pixelMs = (window.toMs - window.fromMs) / (widthPx - gutterPx - RIGHT_PX);
  for (const [index, slice] of row.slices.entries()) {
    if (slice.endMs < window.fromMs || slice.startMs > window.toMs) continue;
    const from = xOf(surface, slice.startMs);
    const width = Math.max(xOf(surface, slice.endMs) - from, slice.kind === 'step' ? 0.75 : 0);
    // Of many that are narrower than a pixel, one of a kind is painted in each half of it.
    const here = width < 1 ? `${Math.floor(from * 2)} ${slice.kind} ${slice.inside} ${steps[slice.step].kind}` : '';
    if (here !== '' && here === painted) continue;
    painted = here;
    const isWait = slice.kind === 'wait';
    const { kind, label: name } = steps[slice.step];
    if (slice.inside) {
      // Over the step that waits: its colour shows through.
      context.globalAlpha = 0.62;
      context.fillStyle = colour('var(--panel)');
      context.fillRect(from, row.topPx + 1, width, ROW_PX - 2);
      context.globalAlpha = 1;
    }
    context.fillStyle = isWait ? (hatch ?? colour('var(--line-strong)')) : colour(stepColour(kind));
    context.fillRect(from, row.topPx, width, ROW_PX);
    if (width < 26) continue;
    // A hair between neighbours of one kind.
    context.fillStyle = colour('var(--panel)');
    context.fillRect(from + width - 0.5, row.topPx, 0.5, ROW_PX);
    const text = isWait ? `waits for ${slice.for}` : name;
    const left = Math.max(from, gutterPx) + 4;
    // Its name ends where another slice begins over it, such as a wait inside of a step.
    const end = xOf(surface, uncoveredUntilMs(row, index, 2 * pixelMs));
    const fitting = shortened(context, text, end - left - 4);
    if (!fitting) continue;
    context.fillStyle = colour(isWait ? 'var(--muted)' : '#101216');
    if (isWait) {
      context.save();
      context.fillStyle = colour('var(--panel)');
      context.globalAlpha = 0.8;
      context.fillRect(left - 2, row.topPx + 2, context.measureText(fitting).width + 4, ROW_PX - 4);
      context.restore();
    }
    context.fillText(fitting, left, row.topPx + ROW_PX / 2 + 0.5);
  }
}

function drawLive(surface: TraceSurface, { live, liveTopPx, mostLiveBytes }: RankLayout): void {
  const { context, window, colour, gutterPx, widthPx } = surface;
  context.fillStyle = colour('var(--sunken)');
  context.fillRect(gutterPx, liveTopPx, widthPx, LIVE_PX);
  const yOf = (bytes: number) => liveTopPx + LIVE_PX * (1 - bytes / (mostLiveBytes * 1.06 || 1));
  // From the top of the stack down, each over the one before.
  for (let top = CATEGORY_LOOKS.length - 1; top >= 0; top--) {
    context.beginPath();
    context.moveTo(xOf(surface, Math.max(live[0].atMs, window.fromMs)), yOf(0));
    for (const [i, { atMs, byCategory }] of live.entries()) {
      const untilMs = live[i + 1]?.atMs ?? window.toMs;
      if (untilMs < window.fromMs) continue;
      if (atMs > window.toMs) break;
      const bytes = byCategory.slice(0, top + 1).reduce((total, value) => total + value, 0);
      context.lineTo(xOf(surface, Math.max(atMs, window.fromMs)), yOf(bytes));
      context.lineTo(xOf(surface, Math.min(untilMs, window.toMs)), yOf(bytes));
    }
    context.lineTo(xOf(surface, window.toMs), yOf(0));
    context.fillStyle = colour(CATEGORY_LOOKS[top].colour);
    context.fill();
  }
}

/** Nothing outside of the lanes' box is painted. */
function inLanes(
  { context, widthPx, gutterPx }: TraceSurface,
  topPx: number,
  heightPx: number,
  paint: () => void,
): void {
  context.save();
  context.beginPath();
  context.rect(gutterPx, topPx, widthPx - gutterPx - RIGHT_PX + 1, heightPx);
  context.clip();
  paint();
  context.restore();
}

function label({ context, gutterPx, colour }: TraceSurface, text: string, yPx: number): void {
  context.textAlign = 'right';
  context.fillStyle = colour('var(--muted)');
  context.fillText(text, gutterPx - 8, yPx);
}

/** As much of a text as has room, or nothing. */
function shortened(context: CanvasRenderingContext2D, text: string, roomPx: number): string {
  if (context.measureText(text).width <= roomPx) return text;
  const characters = Math.floor((roomPx / context.measureText(text).width) * text.length) - 1;
  return characters < 4 ? '' : `${text.slice(0, characters)}…`;
}

function hatchOf({ context, colour }: TraceSurface): CanvasPattern | null {
  const tile = document.createElement('canvas');
  const size = 6;
  tile.width = size;
  tile.height = size;
  const paint = tile.getContext('2d');
  if (!paint) return null;
  paint.strokeStyle = colour('var(--line-strong)');
  paint.lineWidth = 1.2;
  for (const shift of [-size, 0, size]) {
    paint.moveTo(shift, size);
    paint.lineTo(shift + size, 0);
  }
  paint.stroke();
  return context.createPattern(tile, 'repeat');
}
