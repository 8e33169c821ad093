'use client';

import { useEffect } from 'react';
import { Button, ButtonLink } from './_components/ui/button.tsx';
import { Notice } from './_components/ui/notice.tsx';

export default function ErrorPage({ error, reset }: { error: Error; reset: () => void }) {
  useEffect(() => {
    console.error(error);
  }, [error]);
  return (
    <Notice
      tone="bad"
      page
      title="This page broke"
      action={
        <>
          <Button onClick={reset}>Try again</Button>
          <ButtonLink href="/runs">All runs</ButtonLink>
        </>
      }
    >
      {error.message} Nothing of a run is lost by it.
    </Notice>
  );
}
