'use client';

import { useMutation, useQueryClient } from '@tanstack/react-query';
import type { Device } from '../../_lib/adapter-profile.ts';
import { calibrateAdapter } from '../../_lib/api.ts';
import { Button } from '../ui/button.tsx';

/** Where the rates of the time estimate are from, and how to get better ones. */
export function RatesNote(props: {
  /** Whether they were measured on the adapter that the prediction is for. */
  calibrated: boolean;
  /** That adapter, where this machine has it; null for the interpreter and for one that is elsewhere. */
  device: Device | null;
  isElsewhere: boolean;
}) {
  const { calibrated, device } = props;
  const client = useQueryClient();
  const measure = useMutation({
    mutationFn: (id: string) => calibrateAdapter(id),
    onSettled: () => client.invalidateQueries({ queryKey: ['devices'] }),
  });
  const { state, note } = device?.calibration ?? { state: 'none', note: '' };
  const underWay = state === 'waiting' || state === 'measuring';
  return (
    <div className="mt-2 flex flex-wrap items-center justify-between gap-x-3 gap-y-1.5 text-xs" data-testid="rates">
      <p className="min-w-0 flex-1 basis-60 text-muted">
        {calibrated ? (
          'Time by rates that were measured on this adapter.'
        ) : props.isElsewhere ? (
          'Time by rates that were measured on one H200.'
        ) : (
          <>
            Time by <b className="font-semibold text-warn">built-in rates, not measured here</b>: it may be several
            times off. Memory is exact.
          </>
        )}{' '}
        {!calibrated && (underWay || state === 'failed') ? note : null}
        {measure.error ? ` ${measure.error.message}` : null}
      </p>
      {device && !calibrated && !underWay ? (
        <Button
          onClick={() => measure.mutate(device.id)}
          disabled={measure.isPending}
          title="Takes some seconds, once no run is going on and the machine is quiet. On the command line: npm run -s studio -- devices --calibrate"
        >
          Measure this adapter
        </Button>
      ) : null}
    </div>
  );
}
