/** What all pages share. The one instance is made by App.svelte. */

import { askerOf } from '../model/frame/asker';
import { noNodeReports } from '../model/nodes/nodes';
import { judge } from '../model/overview/verdict';
import { Query } from './query.svelte';
import { Editing } from './editing.svelte';
import { Live } from './live.svelte';
import { Login } from './login.svelte';
import { Route } from './route.svelte';
import type { AlertList } from '../api/types';

export class App {
  readonly live = new Live();
  readonly login = new Login();
  readonly route = new Route();
  readonly editing = new Editing();
  readonly alerts = new Query<AlertList>();
  readonly asker = $derived(askerOf(this.login.who));
  /** Whether the token is limited to tenants. */
  readonly limited = $derived(this.asker.tenants !== null);
  readonly locked = $derived(this.login.needed || this.live.locked);
  readonly nodes = $derived(this.live.overview?.nodes ?? []);
  /** No node reports, so only records are known. Users who are limited to tenants see no node's statistics. */
  readonly unknown = $derived(!this.limited && noNodeReports(this.nodes));
  readonly verdict = $derived(this.live.overview ? judge(this.live.overview, this.alerts.value) : null);

  /** Drop what this user was shown, because another one may log in. */
  forget(): void {
    this.live.forget();
    this.alerts.clear();
    this.editing.forget();
  }

  /** Time of the newest event whose name starts with one of these; a list that such events change is read again. */
  newest(...prefixes: string[]): number {
    return this.live.events.find((event) => prefixes.some((prefix) => event.name.startsWith(prefix)))?.at ?? 0;
  }
}
