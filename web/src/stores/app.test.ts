import { expect, it, vi } from 'vitest';
import type { AlertList } from '../api/types';
import { state } from '../fixtures/states';

vi.stubGlobal('location', { hash: '' });
const { App } = await import('./app.svelte');

const ALERTS: AlertList = { items: [], total: 0, next_cursor: '' };
const DELETED = { model: 'm', keys: ['ab'] };

it('drops all that a user was shown, and what comes late', async () => {
  const app = new App();
  await app.alerts.ask(() => Promise.resolve(ALERTS));
  let send = (): void => undefined;
  const sent = new Promise<void>((resolve) => (send = resolve));
  const request = app.alerts.ask(() => sent.then(() => ALERTS));
  app.live.overview = state('busy').overview;
  app.editing.keepPin('prompt', DELETED);
  app.editing.edit('pins', 'prompt');
  expect([app.alerts.value, app.alerts.busy, app.verdict !== null]).toEqual([ALERTS, true, true]);
  app.forget();
  send();
  await request;
  expect([app.alerts.value, app.alerts.busy, app.verdict]).toEqual([null, false, null]);
  expect([app.editing.opened, app.editing.deletedPins.size]).toEqual([null, 0]);
});
