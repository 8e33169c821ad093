import type { ReactNode } from 'react';
import { Icon, type IconName } from './icon.tsx';

const TONES = {
  bad: { box: 'border-bad/35 bg-bad-soft', ink: 'text-bad', icon: 'alert' },
  warn: { box: 'border-warn/35 bg-warn-soft', ink: 'text-warn', icon: 'alert' },
  info: { box: 'border-line bg-panel', ink: 'text-accent', icon: 'info' },
} as const satisfies Record<string, { box: string; ink: string; icon: IconName }>;

/** Something a person should know, with what to do about it. Errors are announced. */
export function Notice(props: {
  tone: keyof typeof TONES;
  title: string;
  children?: ReactNode;
  action?: ReactNode;
  /** It is all that the page shows. */
  page?: boolean;
}) {
  const tone = TONES[props.tone];
  return (
    <div
      role={props.tone === 'bad' ? 'alert' : 'status'}
      className={`flex gap-3 rounded-[10px] border p-3.5 ${tone.box}`}
    >
      <span className={`mt-px ${tone.ink}`}>
        <Icon name={tone.icon} />
      </span>
      <div className="min-w-0 flex-1">
        {props.page ? <h1 className="font-semibold">{props.title}</h1> : <p className="font-semibold">{props.title}</p>}
        {props.children ? <div className="mt-0.5 whitespace-pre-line text-muted">{props.children}</div> : null}
        {props.action ? <div className="mt-2.5 flex flex-wrap gap-2">{props.action}</div> : null}
      </div>
    </div>
  );
}
