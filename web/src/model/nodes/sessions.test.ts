import { expect, test } from 'vitest';
import type { AgentSession, SessionActionAnswer } from '../../api/types';
import { distinct, outcomes, places, sessionMark } from './sessions';

const session = (of: Partial<AgentSession> = {}) => ({ released: false, retained_until: null, used_at: 1_000, bytes: {}, ...of }) as AgentSession;
const label = (of: Partial<AgentSession>, now: number) => sessionMark(session(of), now).label;

test('a session is active for five minutes after its last request, and retained or released whatever its age', () => {
  expect([label({}, 1_299), label({}, 1_300)]).toEqual(['active', 'idle']);
  expect(label({ retained_until: 1_420 }, 1_300)).toBe('retained');
  expect(label({ retained_until: 1_300 }, 1_300)).toBe('idle');
  expect(label({ released: true }, 1_001)).toBe('released');
});

test('a session that is in two parts of a list is listed once, as it was found last', () => {
  const all = [session({ node: 'a', session: 's' }), session({ node: 'b', session: 's' }), session({ node: 'a', session: 's', used_at: 2_000 })];
  expect(distinct(all).map(({ node, used_at }) => [node, used_at])).toEqual([['a', 2_000], ['b', 1_000]]);
});

test('sizes are listed by the place of the bytes', () => {
  expect(places(session({ bytes: { memory: 8_192, disk: 12_288 } }))).toEqual(['8 KiB memory', '12 KiB disk']);
  expect(places(session())).toEqual([]);
});

test('an action tells what each node did or why it did nothing', () => {
  const items = [
    { node: 'a', blocks: 3, bytes: 12_288, refused_blocks: 1, error: null },
    { node: 'b', blocks: 0, bytes: 0, refused_blocks: 0, error: 'b: did not answer within 5 s' },
  ];
  expect(outcomes({ items } as SessionActionAnswer)).toEqual(['a: 3 blocks, 12 KiB; 1 block refused.', 'b: did not answer within 5 s']);
});
