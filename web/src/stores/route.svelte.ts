/** Which page is shown: the part of the address behind `#/`. Other anchors are panels of the live page. */

export type PageName = 'live' | 'usage' | 'audit';

export function pageOf(hash: string): PageName {
  return hash === '#/usage' ? 'usage' : hash === '#/audit' ? 'audit' : 'live';
}

export class Route {
  page = $state<PageName>(pageOf(location.hash));

  follow(): () => void {
    const moved = () => (this.page = pageOf(location.hash));
    addEventListener('hashchange', moved);
    return () => removeEventListener('hashchange', moved);
  }
}
