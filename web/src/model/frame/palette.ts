/** What the command palette finds: pages, tenants, pins, nodes and actions. */

import type { Overview } from '../../api/types';
import { mayChange, operatesFleet, type Asker } from './asker';
import { LABELS, pagesFor } from './pages';
import { matches } from './table';
import { linkTo } from '../../stores/route.svelte';

export interface Command {
  kind: 'page' | 'tenant' | 'pin' | 'node' | 'action';
  label: string;
  /** Address to go to, or what is done instead. */
  link?: string;
  action?: 'create quotas' | 'create pins' | 'create policies' | 'create tiers' | 'create token' | 'log out';
}

export function commandsFor(asker: Asker, overview: Overview | null, session: boolean): Command[] {
  const action = (label: string, name: NonNullable<Command['action']>, may: boolean): Command[] => (may ? [{ kind: 'action', label, action: name }] : []);
  const named = (kind: 'tenant' | 'pin' | 'node', page: 'tenants' | 'pins' | 'nodes', names: string[]): Command[] =>
    names.map((name) => ({ kind, label: name, link: linkTo(page, name) }));
  return [
    ...pagesFor(asker).map((page): Command => ({ kind: 'page', label: LABELS[page], link: linkTo(page) })),
    ...action('New quota', 'create quotas', mayChange(asker, 'quotas')),
    ...action('New pin', 'create pins', mayChange(asker, 'pins')),
    ...action('New policy', 'create policies', mayChange(asker, 'policies')),
    ...action('New tier', 'create tiers', operatesFleet(asker)),
    ...action('New token', 'create token', asker.administers && asker.tenants === null),
    ...action('Log out', 'log out', session),
    ...named('node', 'nodes', (overview?.nodes ?? []).map((node) => node.name)),
    ...named('tenant', 'tenants', (overview?.tenants ?? []).map((tenant) => tenant.tenant)),
    ...named('pin', 'pins', (overview?.pins ?? []).map((pin) => pin.name)),
  ];
}

const MAX_FOUND = 30;

/** Where to look for the words among the tenants and pins that the overview leaves out, of which it has some of many. */
export function elsewhere(overview: Overview | null, words: string): Command[] {
  const find = words.trim();
  if (!overview || !find) return [];
  const search = (kind: 'tenant' | 'pin', page: 'tenants' | 'pins', left: boolean): Command[] =>
    left ? [{ kind, label: `Find ${find} in all ${page}`, link: linkTo(page, '', { find }) }] : [];
  return [
    ...search('tenant', 'tenants', overview.tenants_total > overview.tenants.length),
    ...search('pin', 'pins', overview.pins_total > overview.pins.length),
  ];
}

/** The best matches first: labels that begin with the words, then the others in their order. */
export function found(commands: readonly Command[], words: string): Command[] {
  const wanted = words.trim().toLowerCase();
  if (!wanted) return commands.slice(0, MAX_FOUND);
  const begins = (command: Command) => Number(command.label.toLowerCase().startsWith(wanted));
  return commands
    .filter((command) => matches(wanted, command.label, command.kind))
    .sort((a, b) => begins(b) - begins(a))
    .slice(0, MAX_FOUND);
}
