'use client';

import { QueryClient, QueryClientProvider } from '@tanstack/react-query';
import { type ReactNode, useState } from 'react';
import { ApiError } from '../_lib/api.ts';

/** The cache of what the API said. Answers that say "no" are final; silence is asked again. */
export function Providers({ children }: { children: ReactNode }) {
  const [client] = useState(
    () =>
      new QueryClient({
        defaultOptions: {
          queries: {
            staleTime: 2000,
            retry: (failures, error) =>
              failures < 3 && !(error instanceof ApiError && error.status >= 400 && error.status < 500),
            networkMode: 'always',
          },
          mutations: { networkMode: 'always' },
        },
      }),
  );
  return <QueryClientProvider client={client}>{children}</QueryClientProvider>;
}
