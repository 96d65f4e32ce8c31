/** The pages, in the order of the navigation, and who sees them. */

import type { Asker } from './asker';

export const PAGE_NAMES = ['overview', 'tenants', 'pins', 'nodes', 'blocks', 'policy', 'changes', 'events', 'usage', 'settings'] as const;
export type PageName = (typeof PAGE_NAMES)[number];

export const LABELS: Record<PageName, string> = {
  overview: 'Overview',
  tenants: 'Tenants',
  pins: 'Pins',
  nodes: 'Nodes',
  blocks: 'Blocks',
  policy: 'Policy',
  changes: 'Changes',
  events: 'Events',
  usage: 'Usage',
  settings: 'Settings',
};

/** Pages that the asker can use: policies belong to no tenant. */
export function pagesFor(asker: Asker): PageName[] {
  return PAGE_NAMES.filter((name) => name !== 'policy' || asker.tenants === null);
}
