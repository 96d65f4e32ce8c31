/** Conversations that requests name, as a node reports them: their state, and where their bytes are. */

import { bytes, duration, plural } from '../../format';
import type { AgentSession, SessionActionAnswer } from '../../api/types';
import type { Level } from '../overview/findings';

/** A session that no request has named for so long is idle. */
const IDLE_S = 300;

export interface SessionMark {
  tone: Level | 'off';
  label: string;
  title: string;
}

export function keyOf({ node, session }: AgentSession): string {
  return `${node}/${session}`;
}

/** Each session once: one that is used while a node is asked for the next part of its list is in two parts. */
export function distinct(sessions: readonly AgentSession[]): AgentSession[] {
  return [...new Map(sessions.map((session) => [keyOf(session), session])).values()];
}

/** Seconds for which a session is still retained; 0 or less: it is not. */
export function retention(session: AgentSession, now: number): number {
  return (session.retained_until ?? 0) - now;
}

/** `now`: the server's clock, in Unix seconds. */
export function sessionMark(session: AgentSession, now: number): SessionMark {
  if (session.released) return { tone: 'off', label: 'released', title: 'Its private blocks are the first to be evicted' };
  if (retention(session, now) > 0) return { tone: 'good', label: 'retained', title: "Its blocks are evicted after the tenant's other blocks" };
  if (now - session.used_at < IDLE_S) return { tone: 'note', label: 'active', title: `A request named it in the last ${duration(IDLE_S)}` };
  return { tone: 'off', label: 'idle', title: `No request has named it for ${duration(IDLE_S)}` };
}

/** `8 KiB memory`, `12 KiB disk`: in memory, and in each tier. */
export function places(session: AgentSession): string[] {
  return Object.entries(session.bytes).map(([place, size]) => `${bytes(size)} ${place}`);
}

/** What each node did, or why it did nothing. */
export function outcomes(answer: SessionActionAnswer): string[] {
  return answer.items.map(({ node, blocks, bytes: size, refused_blocks, error }) =>
    error ?? `${node}: ${plural(blocks, 'block')}, ${bytes(size)}${refused_blocks ? `; ${plural(refused_blocks, 'block')} refused` : ''}.`);
}
