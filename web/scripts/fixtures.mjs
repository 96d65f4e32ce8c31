// Writes src/fixtures/*.json: what the API answers in each state that the page must show well. Deterministic, so that a
// change of the shapes is a readable diff. The shapes are the app's; tests hold the files against them. A field that is
// not given here gets an empty value, by the API's description.
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { answers, marks } from './answers.mjs';

const folder = join(dirname(fileURLToPath(import.meta.url)), '..', 'src', 'fixtures');
const { schemas } = JSON.parse(readFileSync(join(folder, '..', '..', '..', 'tests', 'golden', 'openapi.json'), 'utf8')).components;
const AT = 1_772_000_000;
const KiB = 1024;
const MiB = 1024 * KiB;
const GiB = 1024 * MiB;

/** A small generator of numbers in [0, 1) (mulberry32). */
let seed = 8470;
function random() {
  seed = (seed + 0x6d2b79f5) | 0;
  let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
}

const pool = (of = {}) => {
  const p = {
    capacity_bytes: 64 * GiB, used_bytes: 0, ready_bytes: 0, reserved_bytes: 0, quarantined_bytes: 0, pinned_bytes: 0, hinted_bytes: 0, sessions: 0, forgotten_sessions: 0,
    pin_budget_bytes: 16 * GiB, committed_bytes: 0, padding_bytes: 0, segments: 0, blocks: 0, max_blocks: 131_072, prefaulted_bytes: 0,
    free_slot_bytes: 0, huge_pages: false, locked: false, ...of,
  };
  for (const key of Object.keys(p)) if (typeof p[key] === 'number') p[key] = Math.round(p[key]);
  p.used_bytes = p.ready_bytes + p.reserved_bytes + p.quarantined_bytes;
  p.committed_bytes = Math.ceil(p.used_bytes / (256 * MiB)) * 256 * MiB;
  p.prefaulted_bytes = p.committed_bytes;
  p.free_slot_bytes = Math.max(0, p.committed_bytes - p.used_bytes - p.padding_bytes);
  p.segments = p.committed_bytes / (256 * MiB);
  p.blocks = Math.round(p.used_bytes / (2 * MiB));
  return p;
};

const totals = (of = {}) => ({
  requested_blocks: 0, hit_blocks: 0, stored_bytes: 0, read_bytes: 0, stored_blocks: 0, evicted_blocks: 0, evicted_bytes: 0,
  hinted_ttl_blocks: 0, hinted_pin_blocks: 0, refused_hinted_pin_blocks: 0, released_session_blocks: 0, prefetched_session_blocks: 0, evictions_cancelled: 0, refused_blocks: 0, aborted_blocks: 0, quarantined_blocks: 0, invalidated_blocks: 0, corrupt_blocks: 0,
  false_reports: 0, malformed_messages: 0, ring_dropped: 0, ring_entries_rejected: 0, events_dropped: 0, ...of,
});

const busyTotals = totals({
  requested_blocks: 18_402_118, hit_blocks: 13_967_207, stored_bytes: 8_672 * GiB, read_bytes: 27_279 * GiB,
  stored_blocks: 4_440_192, evicted_blocks: 4_415_530, evicted_bytes: 8_624 * GiB, evictions_cancelled: 812,
  refused_blocks: 1_204, aborted_blocks: 96, quarantined_blocks: 48,
});

const tenant = (name, of = {}) => ({
  tenant: name, bytes: 0, blocks: Math.round((of.bytes ?? 0) / (2 * MiB)), limit_bytes: null, floor_bytes: 0,
  effective_floor_bytes: of.floor_bytes ?? 0, weight: 1, pin_budget_bytes: null, pinned_bytes: 0, pins: 0, store_rate_bytes: null,
  on_exceed: 'evict_self', mode: 'enforce', tiers: {}, would_refuse_blocks: 0, over_limit: false, limit_share: null, managed: true, refused: {},
  requested_blocks: 0, hit_blocks: 0, stored_blocks: 0, evicted_blocks: 0, refused_blocks: 0, note: '', ...of,
  hit_ratio: of.requested_blocks ? of.hit_blocks / of.requested_blocks : null,
});

const condition = (type, reason, message, since) => ({ type, status: 'True', reason, message, since });
/** A pin that is applied and does not do what it says. */
const ineffective = (status, reason, message) => {
  const open = (each, text) => (each.type === 'Effective' ? { ...each, status: 'False', reason, message: text } : each);
  return {
    ...status,
    nodes: Object.fromEntries(Object.entries(status.nodes).map(([name, on]) => [name, { ...on, conditions: on.conditions.map((each) => open(each, message)) }])),
    conditions: status.conditions.map((each) => open(each, `on 0 of 1 nodes; ${message}`)),
  };
};
const statusOf = (kind, generation, since = AT - 86_400) => ({
  accepted: true, applied: true,
  nodes: {
    'gpu-a1': {
      observed_generation: generation, state: 'in_sync',
      conditions: [
        condition('Applied', 'Applied', 'gpu-a1 has applied it', since), condition('Effective', 'Effective', 'in force on gpu-a1', since),
      ],
    },
  },
  conditions: [
    condition('Accepted', 'Committed', `generation ${generation} of ${kind}`, since),
    condition('Applied', 'Applied', 'on 1 of 1 nodes', since), condition('Effective', 'Effective', 'on 1 of 1 nodes', since),
  ],
});

const pin = (name, of) => ({
  name, model: 'meta-llama/Llama-3.3-70B-Instruct', tenant: 'chat', strength: 'guaranteed', tier: 'host', refresh_on_hit: false, ttl_s: null, key_count: of.resolved / 4,
  keys_digest: digest(name, of.resolved), expires_at: null, note: '', managed_by: '', selector: null, owner: 'alice', origin: null,
  etag: '"9"', generation: 9, created_at: AT - 604_800, updated_at: AT - 86_400,
  resident: 0, bytes: of.resident * 2 * MiB, guaranteed: of.resident, degraded: of.resident - (of.guaranteed ?? of.resident), expired: false, holds_nothing: false,
  gpu_copies: 0, gpu_copy_bytes: (of.gpu_copies ?? 0) * 2 * MiB, gpu_copies_wanted: of.tier === 'gpu' ? of.resident : 0, tiers: {}, unlisted_tiers: [],
  summary: `resolved ${of.resolved / 4} chunks, ${Math.floor(of.resident / 4)} resident, ${Math.round((of.bytes ?? of.resident * 2 * MiB) / MiB)} MiB${of.tier === 'gpu' ? `, ${of.gpu_copies ?? 0} GPU copies` : ''}`,
  nodes: {
    'gpu-a1': {
      resolved: of.resolved, resident: of.resident, bytes: of.bytes ?? of.resident * 2 * MiB, gpu_copies: of.gpu_copies ?? 0,
      gpu_copy_bytes: (of.gpu_copies ?? 0) * 2 * MiB, gpu_copies_wanted: of.gpu_copies_wanted ?? (of.tier === 'gpu' ? of.resident : 0), tiers: of.tiers ?? {},
    },
  },
  status: statusOf('pins', 9), ...of,
});

const engine = (client, pid, of = {}) => ({
  client, pid, group: 'llama-70b-a', engine: 'vllm 0.25.2', attached_at: AT - 86_000,
  spaces: ['meta-llama/Llama-3.3-70B-Instruct'], connected: true, reserved_bytes: 0, quarantined_bytes: 0, ring_dropped: 0, ring_entries_rejected: 0,
  leased_blocks: 0, alive: true, expelled: '', waits_for_pids: [], read_bytes: 0, read_tokens: 0, stored_bytes: 0, ...of,
});

const gpuCopyPool = (of = {}) => ({
  device: 'GPU-7717ca5e-4f6c-4a3b-9a51-0c5de1c2a901', name: 'NVIDIA H200', capacity_bytes: 8 * GiB, used_bytes: GiB, gpu_copies: 512,
  gpu_copy_bytes: GiB, wanted: 512, copying: 0, leaving_bytes: 0, readers: 1, copied_blocks: 512, copied_bytes: GiB, evicted_blocks: 0,
  read_blocks: 0, failed_copies: 0, problem: '', ...of,
});

const tierTenant = (tenant, blocks, bytes, of = {}) => ({ tenant, blocks, bytes, floor_bytes: 0, effective_floor_bytes: 0, limit_bytes: null, ...of });

const tier = (of = {}) => ({
  name: 'disk', type: 'disk', budget_bytes: 2_048 * GiB, serves: true, state: (of.serves ?? true) ? 'in service' : 'out of service', from_settings: true, shared: false, listed_blocks: null, listing_fault: '', foreign_objects: 0, first_foreign: '', reason: '', out_of_service: 0, blocks: 312_400, stored_bytes: 612 * GiB,
  logical_bytes: 611 * GiB, encodings: { none: 312_400 }, not_compressed: {}, cascaded_blocks: 0, draining_blocks: null,
  spilled_blocks: 340_120, spilled_bytes: 664 * GiB, loaded_blocks: 41_870, loaded_bytes: 82 * GiB, evicted_blocks: 0, refused: {}, lost: {},
  waiting_blocks: 0, waiting_bytes: 0, spilling_bytes: 0, loading_bytes: 0, load_bytes_per_s: 4.2 * GiB,
  tenants: [tierTenant('chat-assistant', 210_400, 412 * GiB), tierTenant('code-search', 102_000, 200 * GiB, { floor_bytes: 100 * GiB, effective_floor_bytes: 100 * GiB, limit_bytes: 256 * GiB })], ...of,
});

const cacheStart = (of = {}) => ({ kind: 'unknown', at: 0, reason: '', released: false, blocks: 0, bytes: 0, lost_blocks: 0, lost_bytes: 0, ...of });

const policyStats = (of = {}) => ({
  algorithm: 'lru', admission: false, admission_idle_s: 240, gate_closed: false, victim_idle_s: null, admitted_blocks: 0,
  declined_blocks: 0, high_watermark: 1, low_watermark: 1, ...of,
});

const space = (id, model, of = {}) => ({
  space: id.repeat(8), model, revision: '', dtype: 'bfloat16', world_size: 1, rank: 0, block_bytes: 2 * MiB,
  blocks: Math.round((of.bytes ?? 0) / (2 * MiB)), bytes: 0, padding_bytes: 0, segments: 1, gateway: '', ...of,
});

const prefix = (label, of) => ({
  label, tenant: 'chat', model: 'meta-llama/Llama-3.3-70B-Instruct', depth: 32, hits: 0, bytes_served: 0, error: 0, resident: 32,
  last_used: AT - 2, nodes: ['gpu-a1'], ...of,
});

const TYPES = ['pins', 'policies', 'quotas'];
const digest = (type, generation) => (type.length * 7919 + generation * 104_729).toString(16).padStart(8, '0').repeat(8);
const desired = (quotas, pins) => ({ pins, policies: 1, quotas });
const observed = (of) => Object.fromEntries(TYPES.filter((t) => of[t]).map((t) => [t, { generation: of[t], digest: digest(t, of[t]), store: 'b0c4a6e2' }]));

const node = (name, of = {}) => ({
  name, state: 'in_sync', epoch: 'b7e1f0c2a94d4be6', pid: 4121, release: '0.1.0',
  engine_socket: '/run/user/1000/larder/engine.sock', control_url: `tcp://${name}:8472`, events_url: `tcp://${name}:8473`,
  public_key: 'rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7', joined_by: '323d00ecc9bfad63', labels: { gpu: 'h200', zone: 'a' },
  reported_labels: { gpu: 'h200', zone: 'a' }, own_labels: {}, draining: false, admitted_managers: ['u9}Tm2b!6V1k#Fh.xQ?s0ZpR(c7Lw@8DyEoGaJn^'], clock_offset_s: 0, capacity_bytes: 32 * GiB, seen_at: AT - 0.3, desired: desired(14, 9),
  observed: observed({ quotas: 14, pins: 9, policies: 1 }), faults: [], stats: null, ...of,
});

const stats = (nodePool, nodeTotals, engines, of = {}) => ({
  at: AT - 0.3, uptime_s: 86_400, armed: true, pool: nodePool, totals: nodeTotals, refused: {}, engines, policy: policyStats(),
  spaces: [], spaces_total: of.spaces?.length ?? 0, sweeps: [], adopted_blocks: 0, start: cacheStart(), cold: false, draining: false, gateway: null, gpu_copy_pools: [], tiers: [], tier_directory_blocks: 0, tier_directory_unlisted: 0,
  gpu_copy_pool_bytes: of.gpu_copy_pools?.length ? 8 * GiB : 0, id_journal_bytes: 96 * 1024, id_journal_capacity_bytes: 32 * MiB, ...of,
});

const applied = statusOf('policies', 1);
const busyForce = policyStats({
  algorithm: 's3fifo', admission: true, victim_idle_s: 1_310, admitted_blocks: 4_102, declined_blocks: 1_877, high_watermark: 0.97,
  low_watermark: 0.95,
});
const busyPolicy = (inForce) => ({
  name: 'default', algorithm: 's3fifo', admission: true, admission_idle_s: 240, high_watermark: 0.97, low_watermark: 0.95,
  note: 'Nightly scans must not push the chat out', managed_by: 'platform', selector: null, priority: 0, etag: '"1"', generation: 1, created_at: AT - 604_800, updated_at: AT - 604_800, in_force: inForce,
  status: applied,
});
const busySpaces = [
  space('9c1f', 'meta-llama/Llama-3.3-70B-Instruct', { bytes: 19 * GiB, world_size: 2, segments: 76, padding_bytes: 150 * MiB }),
  space('77ab', 'Qwen/Qwen3-32B', { bytes: 4.2 * GiB, dtype: 'fp8_e4m3', block_bytes: MiB, blocks: 4_300, segments: 17 }),
];
const busyPrefixes = [
  prefix('p-64f76ee4acd181ce', { bytes_served: 812 * GiB, hits: 12_992, depth: 128, resident: 512, nodes: ['gpu-a1', 'gpu-a2'] }),
  prefix('p-0b1d77c0a9e2f314', { tenant: 'code-search', bytes_served: 641 * GiB, hits: 2_930, depth: 448, resident: 1_792, last_used: AT - 41 }),
  prefix('p-91ce2f00d3b4a6f8', { tenant: 'rag-support', model: 'Qwen/Qwen3-32B', bytes_served: 96 * GiB, hits: 1_536, error: 12, last_used: AT - 130 }),
];

const fact = (name, ago, fields, from = 'gpu-a1') => ({ name, at: AT - ago, seq: 0, node: from, actor: '', fields });
/** The newest twenty, oldest first, counted in that order. */
const facts = (...list) => list.sort((a, b) => a.at - b.at).slice(-20).map((f, i) => ({ ...f, seq: i + 1 }));

const busyPool = pool({ ready_bytes: 46.4 * GiB, reserved_bytes: 1.25 * GiB, pinned_bytes: 6.1 * GiB, padding_bytes: 310 * MiB });
const half = (p) => pool({
  capacity_bytes: p.capacity_bytes / 2, ready_bytes: p.ready_bytes / 2, reserved_bytes: p.reserved_bytes / 2,
  quarantined_bytes: p.quarantined_bytes / 2, pinned_bytes: p.pinned_bytes / 2, pin_budget_bytes: p.pin_budget_bytes / 2, max_blocks: 65_536,
});

const busyTenants = [
  tenant('chat', { bytes: 17.8 * GiB, limit_bytes: 24 * GiB, floor_bytes: 8 * GiB, weight: 2, pin_budget_bytes: 4 * GiB, pinned_bytes: 1 * GiB, pins: 3, requested_blocks: 8_120_400, hit_blocks: 7_064_748, stored_blocks: 1_055_652, evicted_blocks: 1_046_540, note: 'Chat, production' }),
  tenant('code-search', { bytes: 11.2 * GiB, limit_bytes: 12 * GiB, floor_bytes: 4 * GiB, tiers: { disk: { floor_bytes: 100 * GiB, limit_bytes: 256 * GiB } }, pinned_bytes: 3.5 * GiB, pins: 1, on_exceed: 'reject', refused: { over_limit: 1_012 }, requested_blocks: 5_020_118, hit_blocks: 4_116_496, stored_blocks: 903_622, evicted_blocks: 897_888, refused_blocks: 1_012 }),
  tenant('batch-eval', { bytes: 8.4 * GiB, limit_bytes: 16 * GiB, store_rate_bytes: 256 * MiB, mode: 'observe', would_refuse_blocks: 388, requested_blocks: 2_911_204, hit_blocks: 1_106_257, stored_blocks: 1_804_947, evicted_blocks: 1_800_646, refused_blocks: 192 }),
  tenant('rag-support', { bytes: 6.1 * GiB, pins: 1, limit_bytes: 8 * GiB, requested_blocks: 1_802_001, hit_blocks: 1_423_580, stored_blocks: 378_421, evicted_blocks: 375_298 }),
  tenant('_default', { bytes: 2.2 * GiB, managed: false, requested_blocks: 410_882, hit_blocks: 205_441, stored_blocks: 205_441, evicted_blocks: 204_315 }),
  tenant('notebooks', { bytes: 0.7 * GiB, requested_blocks: 137_513, hit_blocks: 50_685, stored_blocks: 92_109, evicted_blocks: 90_843, note: 'Research; no limit on purpose' }),
];

const busyPins = [
  pin('chat-system-prompt', { resolved: 512, resident: 512, strength: 'permanent', tier: 'gpu', tiers: { disk: { blocks: 512, bytes: 514 * 2 * MiB, guaranteed: 512 } }, gpu_copies: 1_024, gpu_copies_wanted: 1_024, note: 'Release 2026-02, do not remove before April' }),
  pin('code-search-tools', { tenant: 'code-search', resolved: 1_792, resident: 1_792 }),
  pin('launch-day-prefix', { resolved: 1_024, resident: 611, expires_at: AT + 2 * 3600 + 840, refresh_on_hit: true, ttl_s: 10_800 }),
  pin('warmup-next-model', { strength: 'soft', tier: 'gpu', model: 'Qwen/Qwen3-235B-A22B', resolved: 2_048, resident: 0, expires_at: AT + 3 * 86_400 }),
  pin('incident-1182', { tenant: 'rag-support', resolved: 256, resident: 0, bytes: 0, guaranteed: 0, expired: true, expires_at: AT - 1_260 }),
];

const engines = [
  engine(1, 18_204, { reserved_bytes: 768 * MiB }),
  engine(2, 18_377, { group: 'llama-70b-b', reserved_bytes: 512 * MiB }),
];

const lmcache = {
  gateway: 'lmcache', url: 'tcp://0.0.0.0:5555', chunk_tokens: 256, connections: 2, lookups: 1, lookups_ended: { expired: 2 },
  requests: { LOOKUP: 40_213, STORE: 9_120, RETRIEVE: 31_771 }, failures: { busy: 3 }, unanswered: 0,
  problem: '', name_restored: 0, memory_short: false, clients: [{ pid: 20144, release: '0.5.5 or 0.5.6', unknown: '', refused: 0, reason: '', connected: true }],
  workers: [{
    instance: 20_144, client: 2, pid: 20_144, model: 'Qwen/Qwen3-32B', world_size: 1, layout: 'paged', dtype: 'bfloat16', chunk_bytes: 2 * MiB,
    copies: false, silent_s: 0.4, attached: true,
  }],
};

const secondGpu = { device: 'GPU-0b1d77c0-a9e2-4314-8d1c-22fe90ab7734' };

function busy() {
  return {
    at: AT, armed: true, ready: true, pool: busyPool, totals: busyTotals,
    rates: { hit_ratio: 0.8123, hit_ratio_total: 0.759, stored_bytes_per_s: 412 * MiB, read_bytes_per_s: 2.31 * GiB, evicted_blocks_per_s: 204.2 },
    tenants: busyTenants, tenants_total: busyTenants.length, pins: busyPins, pins_total: busyPins.length,
    policy: busyPolicy({ 'gpu-a1': busyForce, 'gpu-a2': busyForce }),
    nodes: [
      node('gpu-a1', {
        stats: stats(half(busyPool), busyTotals, engines, { policy: busyForce, spaces: busySpaces, gpu_copy_pools: [gpuCopyPool(), gpuCopyPool(secondGpu)], tiers: [tier()] }),
      }),
      node('gpu-a2', { pid: 3987, epoch: '41c9d7735efa4e02', seen_at: AT - 0.4, stats: stats(half(busyPool), busyTotals, [
        engine(1, 20_011, { group: 'llama-70b-c' }),
        engine(2, 20_144, { group: 'embed', engine: 'lmcache 0.5.6', spaces: ['Qwen/Qwen3-32B', 'Qwen/Qwen3-8B'] }),
      ], { policy: busyForce, spaces: busySpaces, adopted_blocks: 21_480, start: cacheStart({ kind: 'warm', at: AT - 93_600, blocks: 21_480, bytes: 21_480 * 2 * MiB }), gateway: lmcache }) }),
    ],
    refused: { over_limit: 1_012, pool_full: 171, too_many_reservations: 21 },
    recent: facts(
      fact('blocks.stored', 1, { space: '9c1f', tenant: 'chat', events: 4, blocks: 64, bytes: 128 * MiB }),
      fact('blocks.evicted', 1, { tenant: 'batch-eval', reason: 'room', blocks: 64, bytes: 128 * MiB }),
      fact('blocks.stored', 3, { space: '9c1f', tenant: 'code-search', events: 2, blocks: 32, bytes: 64 * MiB }, 'gpu-a2'),
      fact('blocks.evicted', 3, { tenant: 'code-search', reason: 'limit', blocks: 32, bytes: 64 * MiB }, 'gpu-a2'),
      fact('segment.created', 44, { segment: 190, space: '9c1f', bytes: 256 * MiB }),
      fact('snapshot.applied', 221, { type: 'quotas', generation: 14, digest: digest('quotas', 14), traceparent: '' }),
      fact('snapshot.applied', 221, { type: 'quotas', generation: 14, digest: digest('quotas', 14), traceparent: '' }, 'gpu-a2'),
      fact('reservation.expired', 610, { client: 2, pid: 18_377, group: 'llama-70b-b', blocks: 16, bytes: 32 * MiB }),
      fact('blocks.refused', 905, { client: 2, tenant: 'code-search', reason: 'over_limit', blocks: 16, bytes: 32 * MiB }),
      fact('pin.expired', 1_260, { pin: 'incident-1182', tenant: '_default' }),
      fact('gpu_copy_pool.created', 3_090, { device: secondGpu.device, name: 'NVIDIA H200', capacity_bytes: 8 * GiB }),
      fact('engine.attached', 3_100, { client: 2, pid: 20_144, group: 'embed', engine: 'lmcache 0.5.6', spaces: ['Qwen/Qwen3-32B', 'Qwen/Qwen3-8B'] }, 'gpu-a2'),
    ),
  };
}

const empty = () => ({
  at: AT, armed: false, ready: false, pool: pool({ capacity_bytes: 0, pin_budget_bytes: 0, max_blocks: 0 }), totals: totals(),
  rates: { hit_ratio: null, hit_ratio_total: null, stored_bytes_per_s: 0, read_bytes_per_s: 0, evicted_blocks_per_s: 0 },
  tenants: [], tenants_total: 0, pins: [], pins_total: 0, policy: null, nodes: [], refused: {}, recent: [],
});

function fresh() {
  const small = pool({ capacity_bytes: GiB, pin_budget_bytes: 256 * MiB, max_blocks: 16_384 });
  return {
    ...empty(), armed: true, ready: true, pool: small,
    nodes: [node('local', { desired: desired(1, 1), observed: observed({ quotas: 1, pins: 1, policies: 1 }), stats: stats(small, totals(), []) })],
    recent: facts(
      fact('node.started', 4, { node: 'local', epoch: 'b7e1f0c2a94d4be6', pid: 4121, capacity_bytes: GiB }, 'local'),
      ...TYPES.map((type) => fact('snapshot.applied', 3, { type, generation: 1, digest: digest(type, 1), traceparent: '' }, 'local')),
    ),
  };
}

function overLimit() {
  const o = busy();
  const full = pool({ ready_bytes: 58.9 * GiB, reserved_bytes: 0.9 * GiB, quarantined_bytes: 2.4 * GiB, pinned_bytes: 15.8 * GiB });
  const [chat, code, ...rest] = o.tenants;
  const gone = engine(2, 18_377, { group: 'llama-70b-b', connected: false, quarantined_bytes: 2.4 * GiB, waits_for_pids: [18_377, 18_401] });
  const partly = {
    ...pin('code-search-tools', { tenant: 'code-search', resolved: 1_792, resident: 1_792, tier: 'gpu', gpu_copies: 1_408, gpu_copies_wanted: 3_584 }),
    status: ineffective(statusOf('pins', 9), 'FewGpuCopies', "not all resident blocks of code-search-tools have a GPU copy on each GPU of gpu-a1 whose engines read them: the others are read from the node's pool"),
  };
  const small = { capacity_bytes: 2.5 * GiB, used_bytes: 2.5 * GiB, gpu_copies: 1_216, gpu_copy_bytes: 1_216 * 2 * MiB, wanted: 2_304, evicted_blocks: 96, readers: 2 };
  const pressed = { ...busyForce, gate_closed: true, victim_idle_s: 41.5, declined_blocks: 20_310 };
  return {
    ...o, pool: full,
    rates: { ...o.rates, hit_ratio: 0.4471, stored_bytes_per_s: 1.2 * GiB, read_bytes_per_s: 890 * MiB, evicted_blocks_per_s: 611.7 },
    tenants: [
      { ...chat, bytes: 26.2 * GiB, over_limit: true, limit_share: 26.2 / 24, floor_bytes: 20 * GiB, effective_floor_bytes: 16 * GiB, evicted_blocks: chat.evicted_blocks + 5_112 },
      { ...code, bytes: 11.9 * GiB, refused_blocks: 22_940 },
      ...rest.map((each) => (each.tenant === 'batch-eval' ? { ...each, pins: 1 } : each)),
    ],
    pins: [
      ...o.pins.map((each) => (each.name === 'code-search-tools' ? partly : each)),
      pin('eval-harness', { tenant: 'batch-eval', resolved: 4_096, resident: 3_802, guaranteed: 1_990, expires_at: AT + 5_400 }),
    ],
    pins_total: o.pins.length + 1,
    policy: busyPolicy({ 'gpu-a1': pressed }),
    nodes: [{ ...o.nodes[0], stats: stats(full, { ...busyTotals, corrupt_blocks: 2, invalidated_blocks: 4_096 }, [engines[0], gone], {
      policy: pressed, spaces: busySpaces, gpu_copy_pools: [gpuCopyPool({ ...small, leaving_bytes: 64 * MiB }), gpuCopyPool({ ...secondGpu, ...small })],
      sweeps: [{ sweep: 3, kind: 'invalidate', blocks: 4_096, leased: 12 }, { sweep: 4, kind: 'demote', blocks: 310, leased: 0 }],
    }) }],
    refused: { ...o.refused, over_limit: 22_940, pool_full: 1_806 },
    recent: facts(
      ...o.recent,
      fact('engine.detached', 31, { client: 2, pid: 18_377, group: 'llama-70b-b', reason: 'socket closed', quarantined_blocks: 1_229 }),
      fact('pin.degraded', 58, { pin: 'eval-harness', tenant: 'batch-eval', blocks: 1_812 }),
      fact('blocks.refused', 2, { client: 1, tenant: 'code-search', reason: 'over_limit', blocks: 48, bytes: 96 * MiB }),
    ),
  };
}

function nacked() {
  const o = busy();
  const [first, second] = o.nodes;
  const faults = [
    { type: 'quotas', generation: 15, at: AT - 12, path: 'quotas[3].limit_bytes', code: 'BAD_FIELD', message: 'limit_bytes must be at least floor_bytes (8 GiB).' },
    { type: 'quotas', generation: 15, at: AT - 12, path: 'quotas[5].tenant', code: 'BAD_SALT', message: 'cache_salt must not contain "/".' },
  ];
  return {
    ...o,
    nodes: [
      { ...first, desired: desired(15, 9) , observed: observed({ quotas: 15, pins: 9, policies: 1 }) },
      { ...second, state: 'nacked', desired: desired(15, 9), faults },
      node('gpu-a3', {
        state: 'behind', pid: 2210, desired: desired(15, 9), seen_at: AT - 2.1, draining: true,
        labels: { gpu: 'h200', zone: 'b' }, own_labels: { zone: 'b' },
        stats: stats(half(busyPool), busyTotals, [], {
          draining: true,
          gpu_copy_pools: [gpuCopyPool({
            device: 'GPU-91ce2f00-d3b4-46f8-b7e1-f0c2a94d4be6', used_bytes: 384 * MiB, gpu_copies: 160, gpu_copy_bytes: 320 * MiB, copied_blocks: 160,
            copied_bytes: 320 * MiB, failed_copies: 3, readers: 0, problem: 'the GPU gave 384 MiB of 8 GiB: out of memory (CUDA_ERROR_OUT_OF_MEMORY)',
          })],
          tiers: [tier({
            serves: false, reason: '/mnt/nvme0/larder: write: Input/output error', out_of_service: 1, blocks: 8_120, stored_bytes: 16 * GiB,
            refused: { away: 1_204, failed: 12 }, lost: { failed: 3 }, tenants: [],
          })],
        }),
      }),
      node('gpu-a4', {
        state: 'joining', pid: 901, epoch: '0d1b6a0c3f5e4c11', desired: desired(15, 9), observed: {}, seen_at: AT - 0.2,
        draining: true, clock_offset_s: 3600,
      }),
    ],
    recent: facts(fact('snapshot.refused', 12, { type: 'quotas', generation: 15, faults: 2 }, 'gpu-a2'),
      fact('gpu_copy_pool.failed', 40, { device: 'GPU-91ce2f00-d3b4-46f8-b7e1-f0c2a94d4be6', reason: 'out of memory' }, 'gpu-a3'),
      fact('push.nacked', 12, { type: 'quotas', generation: 15, reason: 'changed', faults: faults.map(({ path, code, message }) => ({ path, code, message })) }, 'gpu-a2'), ...o.recent),
  };
}

/** The tenants of a smaller pool. */
const holding = (tenants, readyBytes) => tenants.map((each) => ({ ...each, bytes: (each.bytes * readyBytes) / busyPool.ready_bytes }));

function lost() {
  const o = busy();
  const [first, second] = o.nodes;
  const living = half(busyPool);
  // Sums are over living nodes.
  return { ...o, ready: false, pool: living, tenants: holding(o.tenants, living.ready_bytes), nodes: [first, { ...second, state: 'lost', seen_at: AT - 204, stats: null }] };
}

function thousandTenants() {
  const o = busy();
  const tenants = Array.from({ length: 1_000 }, (_, i) => {
    const bytes = Math.round(((46 * GiB) / 7.5 / (i + 1)) * (0.8 + 0.4 * random()));
    const managed = i % 7 !== 3;
    const limit = managed && i % 5 !== 4 ? Math.max(64 * MiB, Math.ceil((bytes * (1.05 + random())) / MiB) * MiB) : null;
    const over = i === 2 || i === 40 || i === 333;
    const requested = Math.round(bytes / (8 * KiB) * (0.5 + random()));
    const hit = Math.round(requested * (0.25 + 0.7 * random()));
    return tenant(`org-${String((i * 7919) % 10_000).padStart(4, '0')}/team`.replace('/', '.'), {
      bytes, managed, limit_bytes: over ? Math.round(bytes * 0.9) : limit, over_limit: over, limit_share: over ? 10 / 9 : null,
      requested_blocks: requested, hit_blocks: hit, stored_blocks: requested - hit, evicted_blocks: Math.round((requested - hit) * 0.9),
      refused_blocks: over ? 1_200 + i : 0,
    });
  });
  tenants[17].tenant = 'a-tenant-with-a-very-long-name-that-somebody-made-from-a-cost-centre-and-a-region.eu-central-1.production';
  // None of its machines has a GPU that keeps GPU copies.
  const nowhere = ineffective(statusOf('pins', 9), 'NoGpuCopyPool', "no GPU of gpu-a1 keeps GPU copies: gpu_pool_bytes is 0 there; blocks are read from the node's pool");
  const off = (each) => ({
    ...each, gpu_copies: 0, gpu_copy_bytes: 0, gpu_copies_wanted: 0, status: nowhere, summary: each.summary.replace(/\d+ gpu_copies/, '0 GPU copies'),
    nodes: Object.fromEntries(Object.entries(each.nodes).map(([name, on]) => [name, { ...on, gpu_copies: 0, gpu_copy_bytes: 0, gpu_copies_wanted: 0 }])),
  });
  const pins = o.pins.map((each) => (each.tier === 'gpu' ? off(each) : each));
  const nodes = o.nodes.map((each) => ({ ...each, stats: { ...each.stats, gpu_copy_pools: [] } }));
  // The API names the largest 500 and counts the rest.
  return { ...o, pins, nodes, tenants: tenants.sort((a, b) => b.bytes - a.bytes).slice(0, 500), tenants_total: 1_000 };
}

/** One of two nodes was started with an empty cache; no node has blocks of two pins, of which one was emptied by it. */
function cold() {
  const o = busy();
  const [first, second] = o.nodes;
  const began = { kind: 'cold', at: AT - 312, reason: 'the memory was gone when the data plane started', lost_blocks: 12_198, lost_bytes: 12_198 * 2 * MiB };
  const little = pool({ capacity_bytes: 32 * GiB, pin_budget_bytes: 8 * GiB, max_blocks: 65_536, ready_bytes: 1.5 * GiB });
  const whole = half(busyPool);
  const sum = Object.fromEntries(Object.keys(whole).map((key) => [key, typeof whole[key] === 'number' ? whole[key] + little[key] : whole[key]]));
  const emptied = (name, of) => ({
    ...pin(name, { resident: 0, guaranteed: 0, bytes: 0, ...of }), holds_nothing: true,
    status: ineffective(statusOf('pins', 9), 'HoldsNothing', `none of its ${of.resolved.toLocaleString('en-US')} blocks is cached on gpu-a1; they are kept as soon as an engine stores them`),
  });
  const pins = [
    ...o.pins.map((each) => (each.name === 'code-search-tools' ? emptied(each.name, { tenant: 'code-search', resolved: 1_792 }) : each)),
    emptied('next-release', { resolved: 64 }),
  ];
  const tenants = holding(o.tenants, sum.ready_bytes).map((each) => ({ ...each, pins: pins.filter((one) => one.tenant === each.tenant).length }));
  return {
    ...o, pool: sum, tenants, pins, pins_total: pins.length,
    rates: { ...o.rates, hit_ratio: 0.2114 },
    nodes: [
      { ...first, stats: { ...first.stats, uptime_s: 312, pool: little, start: cacheStart(began), cold: true } },
      { ...second, stats: { ...second.stats, start: cacheStart({ kind: 'cold', at: AT - 7_200, reason: 'the memory was released by larder down', released: true }) } },
    ],
    recent: facts(
      ...o.recent,
      fact('cache.started_cold', 312, { reason: began.reason, released: false, lost_blocks: began.lost_blocks, lost_bytes: began.lost_bytes }),
      fact('pin.emptied', 311, { pin: 'code-search-tools', tenant: 'code-search', strength: 'guaranteed', blocks: 1_792 }),
    ),
  };
}

/** What the operator of one tenant sees of the busy cache. */
function tenantsOwn() {
  const o = busy();
  const mine = o.tenants.filter((each) => each.tenant === 'rag-support' || each.tenant === '_default');
  const sum = (key) => mine.reduce((total, each) => total + each[key], 0);
  const used = Math.round(sum('bytes'));
  const nothing = {
    epoch: '', pid: 0, release: '', engine_socket: '', control_url: '', events_url: '', public_key: '', joined_by: '', labels: {}, reported_labels: {},
    own_labels: {}, admitted_managers: [], clock_offset_s: 0, desired: {}, observed: {}, faults: [], stats: null,
  };
  return {
    ...o, tenants: mine, tenants_total: mine.length, pins: o.pins.filter((each) => each.tenant === 'rag-support'), pins_total: 1,
    pool: {
      ...pool(), capacity_bytes: o.pool.capacity_bytes, used_bytes: used, ready_bytes: used, blocks: sum('blocks'), pin_budget_bytes: 0,
      committed_bytes: 0, prefaulted_bytes: 0, free_slot_bytes: 0, segments: 0,
    },
    totals: totals(Object.fromEntries(['requested_blocks', 'hit_blocks', 'stored_blocks', 'evicted_blocks', 'refused_blocks'].map((key) => [key, sum(key)]))),
    rates: { hit_ratio: null, hit_ratio_total: sum('hit_blocks') / sum('requested_blocks'), stored_bytes_per_s: 0, read_bytes_per_s: 0, evicted_blocks_per_s: 0 },
    policy: { ...busyPolicy({}), note: '', managed_by: '', status: { accepted: true, applied: true, nodes: {}, conditions: [] } },
    nodes: o.nodes.map((each, i) => ({ ...each, ...nothing, state: i ? 'behind' : 'in_sync' })),
    refused: {},
    recent: facts(fact('blocks.stored', 1, { space: '77ab', tenant: 'rag-support', events: 4, blocks: 64, bytes: 128 * MiB })),
  };
}

/** Who looks at the page; nobody needs a token where `session` is false. */
const asker = (of = {}) => ({
  actor: 'local', role: 'admin', tenants: null, token_id: '', session: false, source: '127.0.0.1', csrf_token: '', expires_at: null, ...of,
});

const used = (of = {}) => ({
  byte_hours: 0, requested_tokens: 0, served_tokens: 0, saved_prefill_s: 0, unrated_tokens: 0, stored_blocks: 0, stored_bytes: 0,
  evicted_blocks: 0, evicted_bytes: 0, refused_blocks: 0, served_bytes: 0, tiers: {}, ...of,
});

const KV_BYTES = 128 * KiB; // of a token

/** What a day of the tenants comes to, hour by hour. */
function usage(tenants) {
  const DAY = Math.floor(AT / 3_600) * 3_600 - 23 * 3_600;
  const items = [];
  for (let hour = 0; hour < 24; hour += 1) {
    for (const each of tenants) {
      const busyness = 0.4 + 0.6 * Math.sin((hour / 24) * Math.PI);
      const asked = Math.round((each.requested_blocks / 24) * 16 * busyness);
      const served = each.requested_blocks ? Math.round((asked * each.hit_blocks) / each.requested_blocks) : 0;
      const stored = Math.round((each.stored_blocks / 24) * busyness);
      const rated = each.tenant !== 'notebooks';
      const held = Math.round(each.bytes * busyness);
      items.push({
        start: DAY + hour * 3_600, group: each.tenant,
        ...used({
          byte_hours: held, requested_tokens: asked, served_tokens: served, served_bytes: served * KV_BYTES,
          tiers: { memory: { byte_hours: held, served_tokens: served, served_bytes: served * KV_BYTES } },
          saved_prefill_s: rated ? Math.round(served / 2_400) : 0, unrated_tokens: rated ? 0 : served, stored_blocks: stored,
          stored_bytes: stored * 2 * MiB, evicted_blocks: stored, evicted_bytes: stored * 2 * MiB, refused_blocks: hour === 14 ? each.refused_blocks : 0,
        }),
      });
    }
  }
  const summed = (of, counts) => Object.fromEntries(Object.keys(counts).map((key) => [key, items.reduce((sum, item) => sum + of(item)[key], 0)]));
  const { tiers: _, ...counts } = used();
  const memory = { byte_hours: 0, served_tokens: 0, served_bytes: 0 };
  const sums = { ...summed((item) => item, counts), tiers: { memory: summed((item) => item.tiers.memory, memory) } };
  return { group_by: 'tenant', step: '1h', from: DAY, to: DAY + 24 * 3_600, items, totals: used(sums) };
}

const entry = (id, ago, of = {}) => ({
  id, at: AT - ago, actor: 'alice', token_id: 'a1b2c3d4e5f6', source: '10.0.4.17', action: 'update', kind: 'quota', name: 'chat', type: 'quotas', generation: 14,
  before: null, after: null, request_id: `req-${id}`, trace_id: '', decision: 'allowed', reason: '', hash: digest('audit', id), ...of,
});

const journal = [
  entry(1_204, 12, { before: { limit_bytes: 16 * GiB, note: 'Chat, production' }, after: { limit_bytes: 24 * GiB, note: 'Chat, production' } }),
  entry(1_203, 340, { actor: 'rag-ops', source: '10.0.9.2', action: 'PUT', kind: 'request', name: '/api/v1/quotas/chat', type: '', generation: 0, decision: 'denied', reason: "this token is limited to the tenants 'rag-support', not 'chat'" }),
  entry(1_202, 1_260, { actor: 'ci', action: 'create', kind: 'pin', name: 'launch-day-prefix', type: 'pins', generation: 9, after: { model: 'meta-llama/Llama-3.3-70B-Instruct', strength: 'guaranteed', tenant: 'chat' } }),
  entry(1_201, 4_000, { actor: '', token_id: '', action: 'authenticate', kind: 'token', name: '', type: '', generation: 0, decision: 'denied', reason: 'the token is not known: it was revoked, or never made here' }),
  entry(1_200, 7_400, { action: 'delete', kind: 'policy', name: 'night', type: 'policies', generation: 1, before: { algorithm: 'lru', selector: { zone: 'b' } } }),
  entry(1_199, 86_000, { actor: '', action: '', kind: '', name: '', type: '', generation: 0, source: '', token_id: '', at: 0, request_id: '', hash: '', decision: 'unreadable', reason: 'before is no JSON' }),
];

/** One point each ten seconds of the last hour, with a hole of four minutes where the app was down. */
function history(o, { flat = false } = {}) {
  const h = { at: [], used_bytes: [], capacity_bytes: [], hit_ratio: [], stored_bytes_per_s: [], read_bytes_per_s: [] };
  let wander = 0;
  for (let ago = 3_590; ago >= 10; ago -= 10) {
    if (!flat && ago > 2_200 && ago < 2_440) continue;
    wander = wander * 0.96 + (random() - 0.5) * 0.09;
    const wave = Math.sin(ago / 420) * 0.12;
    const grown = Math.min(1, 0.55 + (3_600 - ago) / 4_200 + wander * 0.2);
    h.at.push(AT - ago);
    h.used_bytes.push(flat ? 0 : Math.round(Math.min(o.pool.capacity_bytes, o.pool.used_bytes * grown)));
    h.capacity_bytes.push(o.pool.capacity_bytes);
    h.hit_ratio.push(flat || o.rates.hit_ratio === null ? null : Number(Math.min(0.99, Math.max(0.05, o.rates.hit_ratio + wave * 0.5 + wander)).toFixed(4)));
    h.stored_bytes_per_s.push(flat ? 0 : Math.round(o.rates.stored_bytes_per_s * Math.max(0.1, 1 + wave * 2 + wander * 3 + (random() - 0.5) * 0.25)));
    h.read_bytes_per_s.push(flat ? 0 : Math.round(o.rates.read_bytes_per_s * Math.max(0.1, 1 - wave * 2 + wander * 3 + (random() - 0.5) * 0.25)));
  }
  return h;
}

/** Series of the charts beside those of `history`, made from them. */
function moreHistory(h, o) {
  const of = (make) => h.at.map((_, i) => make(i));
  const disk = o.nodes[0].stats.tiers[0];
  return {
    ...h,
    pinned_bytes: of((i) => Math.round(o.pool.pinned_bytes * (i < 220 ? 0.6 : 1))),
    hit_tokens_per_s: of((i) => Math.round(h.read_bytes_per_s[i] / KV_BYTES)),
    stored_blocks_per_s: of((i) => Math.round(h.stored_bytes_per_s[i] / (2 * MiB))),
    evicted_blocks_per_s: of((i) => Math.round((h.stored_bytes_per_s[i] / (2 * MiB)) * 0.96)),
    refused_blocks_per_s: of((i) => (i > 248 && i < 290 ? Math.round(20 + 12 * Math.sin(i)) : 0)),
    ...(disk ? { tier_used_bytes: of((i) => Math.round(disk.stored_bytes * (0.9 + (0.1 * i) / h.at.length))), tier_budget_bytes: of(() => disk.budget_bytes) } : {}),
    limit_bytes: of(() => 24 * GiB),
    engines: of((i) => (i < 60 ? 3 : 4)),
    leased_blocks: of((i) => Math.round(120 + 60 * Math.sin(i / 9))),
    cpu_cores: of((i) => Number((0.4 + 0.1 * Math.sin(i / 20)).toFixed(3))),
  };
}

const none = { at: [], used_bytes: [], capacity_bytes: [], hit_ratio: [], stored_bytes_per_s: [], read_bytes_per_s: [] };

/** One line for each record and each column: short files, readable diffs. */
function text(value) {
  const rows = (list, indent) => (list.length ? `[\n${list.map((v) => indent + JSON.stringify(v)).join(',\n')}\n${indent.slice(2)}]` : '[]');
  const one = (v, indent) => (Array.isArray(v) && typeof v[0] === 'object' && v[0] ? rows(v, indent) : v?.items && !Array.isArray(v) ? fields(v, indent) : JSON.stringify(v));
  const fields = (object, indent) => `{\n${Object.entries(object).map(([k, v]) => `${indent}${JSON.stringify(k)}: ${one(v, `${indent}  `)}`).join(',\n')}\n${indent.slice(2)}}`;
  return `{\n${Object.entries(value).map(([k, v]) => `  ${JSON.stringify(k)}: ${Array.isArray(v) ? rows(v, '    ') : fields(v, '    ')}`).join(',\n')}\n}\n`;
}

const named = (schema) => (schema.$ref ? schemas[schema.$ref.split('/').pop()] : schema);
const isNull = (schema) => schema.type === 'null' || schema.type?.includes?.('null');

/** What a field holds before there is anything to tell. */
function nothing(schema) {
  const { type, enum: choices, oneOf } = named(schema);
  if (isNull({ type }) || oneOf?.some(isNull)) return null;
  if (choices || oneOf) return choices ? choices[0] : nothing(oneOf[0]);
  return { string: '', integer: 0, number: 0, boolean: false, array: [] }[type] ?? filled(schema, {});
}

/** The value, with the required fields that it lacks. */
function filled(schema, value) {
  if (value === null || typeof value !== 'object') return value;
  const { oneOf, items, properties, required = [], additionalProperties: others } = named(schema);
  if (oneOf) return filled(oneOf.find((each) => !isNull(each)), value);
  if (Array.isArray(value)) return value.map((each) => filled(items ?? {}, each));
  const whole = { ...value };
  for (const name of required) if (!(name in whole)) whole[name] = nothing(properties[name]);
  return Object.fromEntries(Object.entries(whole).map(([name, each]) => [name, filled(properties?.[name] ?? others ?? {}, each)]));
}

const states = { fresh, busy, 'over-limit': overLimit, nacked, lost, 'thousand-tenants': thousandTenants, cold, empty, tenant: tenantsOwn };
const tenantsOperator = asker({
  actor: 'rag-ops', role: 'operator', tenants: ['_default', 'rag-support'], token_id: '8d1c22fe90ab7734', session: true, csrf_token: 'c5', expires_at: AT + 40_000,
});
for (const [name, make] of Object.entries(states)) {
  seed = 8470;
  const overview = filled(schemas.Overview, make());
  const past = ['empty', 'fresh', 'tenant'].includes(name) ? none : ['busy', 'over-limit'].includes(name) ? moreHistory(history(overview), overview) : history(overview);
  const session = name === 'tenant' ? tenantsOperator : asker();
  const seen = busyPrefixes.filter((each) => session.tenants?.includes(each.tenant) ?? true);
  const items = name === 'empty' || name === 'fresh' ? [] : seen;
  const hot = { items, total: items.length, failed_nodes: name === 'lost' ? [{ node: 'gpu-a2', error: 'gpu-a2: did not answer within 5 s' }] : [] };
  const quiet = name === 'empty' || name === 'fresh';
  // A thousand tenants would be a large file for nothing.
  const used24 = usage(quiet ? [] : overview.tenants.slice(0, 6));
  const audit = { items: quiet ? [] : journal, total: quiet ? 0 : 1_204, next_cursor: quiet ? '' : 'b2xkZXI' };
  // Bytes are whole numbers.
  const exact = (key, value) => (/bytes$/.test(key) && typeof value === 'number' ? Math.round(value) : value);
  const more = name === 'busy' ? { answers: answers({ at: AT, overview, digest, statusOf, policy: overview.policy }), marks: marks(AT) } : {};
  writeFileSync(join(folder, `${name}.json`), text(JSON.parse(JSON.stringify({ session, overview, history: past, prefixes: hot, usage: used24, audit, ...more }, exact))));
}
