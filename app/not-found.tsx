import { ButtonLink } from './_components/ui/button.tsx';
import { Notice } from './_components/ui/notice.tsx';

export default function NotFound() {
  return (
    <Notice
      tone="info"
      page
      title="There is nothing at this address"
      action={<ButtonLink href="/runs">All runs</ButtonLink>}
    />
  );
}
