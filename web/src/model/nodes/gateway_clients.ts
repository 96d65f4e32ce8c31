/** Clients of a gateway: the release that their requests tell, and those whose requests are refused as a whole. */

import { plural } from '../../format';
import type { Engine, Gateway } from '../../api/types';

/** A line for each client with refused requests, or of a release that the node does not know. */
export function refusedClients(gateway: Gateway): string[] {
  return gateway.clients
    .filter((client) => client.refused || client.unknown)
    .map((client) => {
      const who = client.pid ? `Client pid ${client.pid}` : 'A client';
      const release = client.release ? ` (LMCache ${client.release})` : '';
      const unknown = client.unknown ? ` sends what no known release sends: ${client.unknown}.` : ':';
      const last = client.reason && client.reason !== client.unknown ? `, the last one: ${client.reason}` : '';
      return `${who}${release}${unknown} ${plural(client.refused, 'request')} refused${last}`;
    });
}

/** The releases that send what an engine's process sends; empty for an engine of no gateway. */
export function releaseOf(gateway: Gateway | null, engine: Engine): string {
  return ofProcess(gateway, engine).find((client) => client.release)?.release ?? '';
}

/** Requests of an engine's process that were refused as a whole. */
export function refusedOf(gateway: Gateway | null, engine: Engine): number {
  return ofProcess(gateway, engine).reduce((sum, client) => sum + client.refused, 0);
}

function ofProcess(gateway: Gateway | null, engine: Engine) {
  return engine.pid ? (gateway?.clients ?? []).filter((client) => client.connected && client.pid === engine.pid) : [];
}
