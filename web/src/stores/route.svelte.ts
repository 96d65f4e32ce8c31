/** The shown page: the part of the URL after `#/`, as in `#/tenants/acme?sort=used`. */

import { PAGE_NAMES, type PageName } from '../model/frame/pages';

export interface Place {
  page: PageName;
  /** Name of the one thing that the page shows; empty for the list. */
  name: string;
  params: URLSearchParams;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** An unknown page is the overview. */
export function placeOf(hash: string): Place {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split(/\?(.*)/s, 2);
  const [first = '', ...rest] = path.split('/');
  const page = PAGE_NAMES.find((name) => name === first) ?? 'overview';
  return { page, name: decoded(rest.join('/')), params: new URLSearchParams(query) };
}

export function linkTo(page: PageName, name = '', params: Record<string, string> = {}): string {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== '')).toString();
  const path = page === 'overview' ? '' : `${page}${name ? `/${encodeURIComponent(name)}` : ''}`;
  return `#/${path}${query ? `?${query}` : ''}`;
}

export class Route {
  #hash = $state(location.hash);
  readonly place = $derived(placeOf(this.#hash));
  readonly page = $derived(this.place.page);
  readonly name = $derived(this.place.name);

  /** Value of a parameter; empty if it is not set. */
  param(name: string): string {
    return this.place.params.get(name) ?? '';
  }

  /** Change parameters of the page, without a new entry in the browser's history. Empty values are removed. */
  set(changes: Record<string, string>): void {
    const params = { ...Object.fromEntries(this.place.params), ...changes };
    const hash = linkTo(this.page, this.name, params);
    history.replaceState(history.state, '', hash);
    this.#hash = hash;
  }

  go(hash: string): void {
    location.hash = hash;
  }

  follow(): () => void {
    const moved = () => (this.#hash = location.hash);
    addEventListener('hashchange', moved);
    return () => removeEventListener('hashchange', moved);
  }
}
