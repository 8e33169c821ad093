'use client';

import { AlertDialog } from '@base-ui/react/alert-dialog';
import { buttonClass } from './button.tsx';
import { Icon, type IconName } from './icon.tsx';

/** A button whose deed cannot be undone, and the question before it. */
export function ConfirmButton(props: {
  label: string;
  icon: IconName;
  title: string;
  text: string;
  confirm: string;
  disabled?: boolean;
  /** The icon alone is seen. */
  compact?: boolean;
  onConfirm: () => void;
}) {
  return (
    <AlertDialog.Root>
      <AlertDialog.Trigger
        className={props.compact ? buttonClass('quiet', 'icon') : buttonClass('danger')}
        disabled={props.disabled}
        title={props.compact ? props.label : undefined}
      >
        <Icon name={props.icon} className="size-3.5" />
        {props.compact ? <span className="sr-only">{props.label}</span> : props.label}
      </AlertDialog.Trigger>
      <AlertDialog.Portal>
        <AlertDialog.Backdrop className="fixed inset-0 z-40 bg-black/40 transition-opacity data-[ending-style]:opacity-0 data-[starting-style]:opacity-0" />
        <AlertDialog.Popup className="panel fixed top-1/2 left-1/2 z-50 w-[min(26rem,calc(100vw-2rem))] -translate-x-1/2 -translate-y-1/2 p-5 shadow-2xl transition-[opacity,scale] data-[ending-style]:scale-98 data-[ending-style]:opacity-0 data-[starting-style]:scale-98 data-[starting-style]:opacity-0">
          <AlertDialog.Title className="text-base font-semibold">{props.title}</AlertDialog.Title>
          <AlertDialog.Description className="mt-1.5 text-muted">{props.text}</AlertDialog.Description>
          <div className="mt-5 flex justify-end gap-2">
            <AlertDialog.Close className={buttonClass('plain')}>Cancel</AlertDialog.Close>
            <AlertDialog.Close className={buttonClass('danger-fill')} onClick={props.onConfirm}>
              {props.confirm}
            </AlertDialog.Close>
          </div>
        </AlertDialog.Popup>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}
