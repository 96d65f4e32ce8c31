/** The shown page, from the part of the URL after `#/`. Other anchors are panels of the live page. */

export type PageName = 'live' | 'usage' | 'records' | 'audit';

const PAGES = ['usage', 'records', 'audit'] as const;

export function pageOf(hash: string): PageName {
  const path = hash.split('?', 1)[0];
  return PAGES.find((page) => path === `#/${page}`) ?? 'live';
}

/** Parameters of the page in the URL, as in `#/audit?kind=quota`. */
export function askedIn(hash: string): URLSearchParams {
  return new URLSearchParams(hash.includes('?') ? hash.slice(hash.indexOf('?') + 1) : '');
}

export class Route {
  page = $state<PageName>(pageOf(location.hash));

  follow(): () => void {
    const moved = () => (this.page = pageOf(location.hash));
    addEventListener('hashchange', moved);
    return () => removeEventListener('hashchange', moved);
  }
}
