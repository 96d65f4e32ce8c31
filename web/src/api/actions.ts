/** Actions on nodes, tenants, pins, sessions, blocks and tokens. */

import { send, sendRaw } from './client';
import { signed, type Signed } from './records';
import type { ActionAnswer, AgentSession, NewToken, Node, Pin, Quota, SessionActionAnswer, Token } from './types';
import type { Json } from '../model/records/fields';

const path = (...parts: string[]) => `api/v1/${parts.map(encodeURIComponent).join('/')}`;
const post = <T>(by: Signed, to: string, body: Json) => send<T>('POST', to, signed(by), JSON.stringify(body));

export function drainNode(by: Signed, name: string, on: boolean): Promise<Node> {
  return post<Node>(by, `${path('nodes', name)}/drain`, { on });
}

/** Remove a node from the fleet. A node that is connected is removed only by force. */
export function forgetNode(by: Signed, name: string, force: boolean): Promise<unknown> {
  return sendRaw<unknown>('DELETE', `${path('nodes', name)}?force=${force}`, signed(by));
}

export function adoptTenant(by: Signed, name: string): Promise<Quota> {
  return post<Quota>(by, `${path('tenants', name)}/adopt`, {});
}

export function extendPin(by: Signed, name: string, ttl_s: number): Promise<Pin> {
  return post<Pin>(by, `${path('pins', name)}:extend`, { ttl_s });
}

export type SessionAction = 'release' | 'retain' | 'prefetch';

/** Act on a session on its node. `seconds`: how long it is retained; null for the API's default. */
export function actOnSession(by: Signed, action: SessionAction, { session, tenant, node }: AgentSession, seconds: number | null = null): Promise<SessionActionAnswer> {
  return post<SessionActionAnswer>(by, `${path('sessions', session)}:${action}`, { tenant, node, ...(seconds === null ? {} : { seconds }) });
}

/** What blocks a demotion or invalidation is for. */
export type Scope = { tenant?: string; model?: string; space?: string; keys?: string[] };

export function sweepBlocks(by: Signed, verb: 'demote' | 'invalidate', scope: Scope, dry_run: boolean): Promise<ActionAnswer> {
  return post<ActionAnswer>(by, `api/v1/actions/${verb}`, { ...scope, dry_run });
}

export function createToken(by: Signed, body: Json): Promise<NewToken> {
  return post<NewToken>(by, 'api/v1/tokens', body);
}

export function changeToken(by: Signed, id: string, patch: Json): Promise<Token> {
  const headers = { ...signed(by), 'content-type': 'application/merge-patch+json' };
  return send<Token>('PATCH', path('tokens', id), headers, JSON.stringify(patch));
}

export function revokeToken(by: Signed, id: string): Promise<unknown> {
  return sendRaw<unknown>('DELETE', path('tokens', id), signed(by));
}
