/** The shapes of the API that the page reads. Sizes are bytes, times are Unix seconds, counters are since a node's start. */

export interface PoolStats {
  capacity_bytes: number;
  /** ready + reserved + quarantined */
  used_bytes: number;
  ready_bytes: number;
  reserved_bytes: number;
  quarantined_bytes: number;
  /** The part of the ready bytes that pins keep. */
  pinned_bytes: number;
  pin_budget_bytes: number;
  committed_bytes: number;
  padding_bytes: number;
  segments: number;
  blocks: number;
  max_blocks: number;
}

export interface Totals {
  requested_blocks: number;
  hit_blocks: number;
  bytes_in: number;
  bytes_out: number;
  stored_blocks: number;
  evicted_blocks: number;
  evicted_bytes: number;
  put_back_blocks: number;
  refused_blocks: number;
  aborted_blocks: number;
  quarantined_blocks: number;
  malformed_messages: number;
  ring_dropped: number;
  events_dropped: number;
}

export interface Rates {
  /** Of the last minute; null when nothing was asked for. */
  hit_ratio: number | null;
  hit_ratio_total: number | null;
  bytes_in_per_s: number;
  bytes_out_per_s: number;
  evicted_blocks_per_s: number;
}

export interface Tenant {
  tenant: string;
  bytes: number;
  blocks: number;
  limit_bytes: number | null;
  over_limit: boolean;
  /** A quota record exists. */
  managed: boolean;
  requested_blocks: number;
  hit_blocks: number;
  stored_blocks: number;
  evicted_blocks: number;
  refused_blocks: number;
  note?: string | null;
}

export interface Pin {
  name: string;
  model: string;
  tenant: string;
  strength: string;
  key_count: number;
  expires_at: number | null;
  note: string | null;
  /** Blocks that the pin names, of them resident, of them guaranteed. */
  resolved: number;
  resident: number;
  guaranteed: number;
  bytes: number;
  expired: boolean;
  status: string;
}

export interface Engine {
  client: number;
  pid: number;
  group: string;
  engine: string;
  attached_at: number;
  spaces: string[];
  connected: boolean;
  reserved_bytes: number;
  quarantined_bytes: number;
  ring_dropped: number;
}

export interface Fault {
  path: string;
  code: string;
  message: string;
}

export type NodeState = 'joining' | 'in_sync' | 'behind' | 'nacked' | 'lost';

export interface Node {
  name: string;
  state: NodeState;
  epoch: string | null;
  pid: number | null;
  release: string | null;
  engine_socket: string | null;
  seen_at: number | null;
  /** Generation by snapshot type. */
  desired: Record<string, number>;
  observed: Record<string, { generation: number; digest: string }>;
  faults: Fault[];
  stats: { pool: PoolStats; totals: Totals; engines: Engine[] } | null;
}

export interface Fact {
  name: string;
  at: number;
  seq: number;
  node: string;
  fields: Record<string, unknown>;
}

export interface Overview {
  at: number;
  /** A quotas snapshot is in force on every node. */
  armed: boolean;
  ready: boolean;
  pool: PoolStats;
  totals: Totals;
  rates: Rates;
  tenants: Tenant[];
  pins: Pin[];
  nodes: Node[];
  /** Refused blocks by code. */
  refused: Record<string, number>;
  recent: Fact[];
}

export interface History {
  at: number[];
  used_bytes: number[];
  capacity_bytes: number[];
  hit_ratio: (number | null)[];
  bytes_in_per_s: number[];
  bytes_out_per_s: number[];
}

/** RFC 9457. */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail?: string;
  code?: string;
}
