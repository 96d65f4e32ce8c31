import { expect, it } from 'vitest';
import type { AlertList, Change, Finding, Overview } from '../../api/types';
import { state } from '../../fixtures/states';
import { detailOf, levels, listed, of, placeOf, urgent } from './findings';
import { judge } from './verdict';

const { overview: busy } = state('busy');
const [cold, empty] = state('cold').overview.findings as [Finding, Finding];

it('is calm when nothing was found', () => {
  expect(judge(busy)).toEqual({ level: 'good', title: 'All is well', findings: [] });
  expect(judge(state('fresh').overview).level).toBe('good');
});

it('is not calm while an alert fires', () => {
  const list = (...severities: string[]) =>
    ({ items: severities.map((severity) => ({ severity })), total: severities.length, next_cursor: '' }) as AlertList;
  const firing = (overview: Overview, ...severities: string[]) => judge(overview, list(...severities));
  expect(firing(busy)).toEqual(judge(busy));
  expect(firing(busy, 'info')).toEqual({ level: 'note', title: '1 alert firing', findings: [] });
  expect(firing(busy, 'info', 'warning')).toMatchObject({ level: 'warn', title: '2 alerts firing' });
  expect(firing(state('cold').overview, 'critical')).toMatchObject({ level: 'bad', title: '1 alert firing, 3 warnings' });
});

it('counts what was found by its severity', () => {
  expect(judge(state('nacked').overview)).toMatchObject({ level: 'bad', title: '1 problem, 4 warnings' });
  expect(judge({ ...busy, findings: [{ ...cold, severity: 'info' }] })).toMatchObject({ level: 'note', title: 'Well, with a note' });
});

it('counts those that a finding stands for', () => {
  const more = { ...empty, count: 281 };
  expect(judge({ ...busy, findings: [empty, more] }).title).toBe('282 warnings');
  expect(listed([empty, empty, empty, more]).map(({ more: text }) => text)).toEqual(['', '', 'And 281 more like this.']);
});

it('a finding leads to the page of its subject', () => {
  expect([cold, empty].map(placeOf)).toEqual([{ page: 'nodes', name: 'gpu-a1' }, { page: 'pins', name: 'code-search-tools' }]);
  const tier = { ...cold, subject: { kind: 'tier' as const, name: 'disk', node: 'gpu-a2', tenant: '' } };
  expect(placeOf(tier)).toEqual({ page: 'nodes', name: 'gpu-a2' });
});

it('what needs attention marks its page at the worst level', () => {
  const ended = { ...cold, ended_at: cold.since };
  const note = { ...empty, severity: 'info' as const };
  expect(urgent([note, ended])).toEqual([ended]);
  expect(levels([ended, empty])).toEqual({ nodes: 'warn', pins: 'warn' });
  expect(levels([ended, { ...cold, severity: 'critical' }, ended])).toEqual({ nodes: 'bad' });
  expect(of([ended, { ...ended, severity: 'info' }], 'gpu-a1')).toEqual([ended]);
});

it('a finding shows when it is or was so, why, and the change before it', () => {
  const now = cold.since! + 60;
  expect(detailOf({ ...cold, detail: 'it is so' }, now)).toBe('For 1 min: it is so.');
  expect(detailOf({ ...cold, detail: 'it is so', ended_at: now - 30 }, now)).toBe('From 1 min ago to 30 s ago: it is so.');
  expect(detailOf({ ...cold, detail: 'it was so', ended_at: cold.since }, now)).toBe('1 min ago: it was so.');
  expect(detailOf({ ...cold, detail: '', since: null, ended_at: now - 30 }, now)).toBe('30 s ago.');
  expect(detailOf({ ...cold, detail: '', since: null }, now)).toBe('');
  const change = { summary: 'quota acme: limit_bytes 8 GiB → 1 GiB', actor: 'alice', at: now - 90 } as Change;
  expect(detailOf({ ...cold, detail: 'x', since: null, likely_change: change }, now)).toBe(
    'X. The latest change before it: quota acme: limit_bytes 8 GiB → 1 GiB by alice, 1 min 30 s ago.',
  );
});

it('more than three findings of a type are counted', () => {
  const rows = listed([empty, empty, cold, empty, empty, empty]);
  expect(rows.map(({ finding, more }) => [finding.code, more])).toEqual([
    ['pin_holds_nothing', ''], ['pin_holds_nothing', ''], ['cache_cold', ''], ['pin_holds_nothing', 'And 2 more like this.'],
  ]);
});
