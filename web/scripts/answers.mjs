// What the API answers to the other lists of the busy state, by the path under /api/v1/.
const KiB = 1024;
const MiB = 1024 * KiB;
const GiB = 1024 * MiB;
const LLAMA = 'meta-llama/Llama-3.3-70B-Instruct';
const QWEN = 'Qwen/Qwen3-32B';

const counted = (items) => ({ items, total: items.length });
const whole = (items, of = {}) => ({ ...counted(items), next_cursor: '', ...of });

/** Names, times and marks come from the overview that is played beside them. */
export function answers({ at, overview, digest, statusOf, policy }) {
  const nodes = overview.nodes.map(({ name }) => name);
  const own = { etag: '"1"', created_at: at - 604_800, updated_at: at - 86_400 };
  const status = (kind, generation) => onNodes(statusOf(kind, generation), nodes);
  const night = { ...policy, name: 'night', algorithm: 'lru', admission: false, selector: { zone: 'b' }, priority: 10, note: '', managed_by: '', etag: '"2"', generation: 2, in_force: {}, status: { ...statusOf('policies', 2), nodes: {}, conditions: [] } };
  const policies = [{ ...policy, status: status('policies', 1) }, night];
  const disk = overview.nodes[0].stats.tiers[0];
  return {
    policies: whole(policies, { in_force: policy.in_force }),
    pushes: counted([
      ...nodes.map((node, i) => push(204 - i, node, 'quotas', 14, at - 12)),
      ...nodes.map((node, i) => push(202 - i, node, 'pins', 9, at - 1_260)),
      push(200, nodes[1], 'quotas', 13, at - 5_400, { state: 'nacked', reason: 'change', attempt: 2, faults: [{ path: 'quotas[2].limit_bytes', code: 'BAD_FIELD', message: 'limit_bytes must be at least floor_bytes (8 GiB).' }] }),
      push(199, nodes[0], 'quotas', 13, at - 5_400),
    ]),
    managers: counted([
      { id: 'a41f0c22d7b84e9a', host: 'mgmt-1', pid: 812, url: 'http://mgmt-1:8470', started_at: at - 604_800, seen_at: at - 1, alive: true, answering: true, pushing: true },
      { id: '7be2910f3c5d46f1', host: 'mgmt-2', pid: 790, url: 'http://mgmt-2:8470', started_at: at - 86_400, seen_at: at - 2, alive: true, answering: true, pushing: false },
    ]),
    tokens: whole([
      { id: 'a1b2c3d4e5f60718', name: 'alice', role: 'admin', tenants: null, created_at: at - 2_592_000, created_by: 'local', expires_at: null, expired: false, last_used_at: at - 12, last_used_from: '10.0.4.17' },
      { id: '8d1c22fe90ab7734', name: 'rag-ops', role: 'operator', tenants: ['rag-support'], created_at: at - 604_800, created_by: 'alice', expires_at: at + 2_000_000, expired: false, last_used_at: at - 340, last_used_from: '10.0.9.2' },
      { id: '44c09e1b77aa2310', name: 'grafana', role: 'viewer', tenants: null, created_at: at - 604_800, created_by: 'alice', expires_at: at - 7_200, expired: true, last_used_at: at - 7_300, last_used_from: '10.0.4.30' },
      { id: '0f0e0d0c0b0a0908', name: 'alertmanager', role: 'alerts', tenants: null, created_at: at - 604_800, created_by: 'alice', expires_at: null, expired: false, last_used_at: null, last_used_from: '' },
    ]),
    ceilings: whole([{ ...own, tenant: 'rag-support', max_limit_bytes: 16 * GiB, max_floor_bytes: 2 * GiB, max_weight: 2, max_pin_budget_bytes: GiB, max_store_rate_bytes: null, max_ttl_s: 604_800, strengths: ['soft', 'guaranteed'], no_bound: ['max_store_rate_bytes'], note: 'Support team', revision: 3 }]),
    rates: whole([{ ...own, name: 'llama-70b', model: LLAMA, space: '', prefill_tokens_per_s: 2_400, note: 'Measured on two H200' }]),
    tokenizers: whole([{ ...own, name: 'llama', model: LLAMA, digest: digest('tokenizers', 1), revision: 1, chat_template: '{{ messages }}', special_tokens: { bos_token: '<s>' }, add_special_tokens: true, note: '' }]),
    tiers: whole([{
      ...own, name: 'archive', type: 's3', budget_bytes: 8_192 * GiB, order: 2, spill: 'cascade', load_deadline_s: 5, max_bytes_in_flight: 256 * MiB, compress: 'zstd',
      parameters: { bucket: 'larder-archive', region: 'eu-central-1' }, note: 'Nightly evaluations', managed_by: '', selector: null, generation: 3,
      blocks: 1_204_000, stored_bytes: 2_351 * GiB, logical_bytes: 3_210 * GiB, unspilled_bytes: 0, faults: {}, status: status('tiers', 3),
      stats: Object.fromEntries(nodes.map((node) => [node, { ...disk, name: 'archive', type: 's3', budget_bytes: 8_192 * GiB, blocks: 602_000, stored_bytes: Math.round(1_175.5 * GiB), from_settings: false, shared: true, tenants: [] }])),
    }], { from_settings: [{ name: 'disk', blocks: disk.blocks, stored_bytes: disk.stored_bytes, logical_bytes: disk.logical_bytes, unspilled_bytes: 0, stats: { [nodes[0]]: disk } }] }),
    ipc: counted([{
      node: nodes[0], at: at - 2, dead_peers: 0, messages: 812_400, message_bytes: 3 * GiB, put_bytes: 12 * GiB, problem: '', queues_total: 1, stores_total: 1,
      queues: [{ name: 'vllm-steps', identity: 'q1', writer: 18_204, readers: 4, remote_readers: 0, dead_readers: 0, capacity_bytes: 64 * MiB, bytes: 3 * GiB, messages: 812_400, bytes_per_s: 3.4 * MiB, messages_per_s: 912.4, lag_bytes: 96 * KiB, dropped: 0, waits: 12 }],
      stores: [{ name: 'mm-inputs', identity: 's1', processes: 5, dead_processes: 0, data_bytes: GiB, used_bytes: 612 * MiB, objects: 1_840, puts: 20_400, puts_per_s: 21.2, put_bytes: 12 * GiB, bytes_per_s: 9.8 * MiB, hits: 80_400, misses: 20_400, evictions: 18_560 }],
    }]),
    blocks: { items: blocks(at, nodes, digest), failed_nodes: [], next_cursor: '' },
    sessions: {
      items: [
        session('support-4471', nodes[0], at, { released: true, used_at: at - 1_860, private_bytes: 96 * MiB, chunks: 24, bytes: { memory: 96 * MiB, disk: 96 * MiB } }),
        session('agent-7c1e', nodes[0], at, { used_at: at - 740, chunks: 61, bytes: { memory: 24 * MiB, disk: 244 * MiB, archive: 244 * MiB } }),
        session('agent-90b3', nodes[0], at, { used_at: at - 38, retained_until: at + 262, private_bytes: 180 * MiB, chunks: 77, bytes: { memory: 308 * MiB, disk: 308 * MiB } }),
        session('agent-90b3', nodes[1], at, { used_at: at - 4, private_bytes: 12 * MiB, chunks: 80, bytes: { memory: 320 * MiB } }),
        session('ticket-118', nodes[1], at, { tenant: 'rag-support', model: QWEN, used_at: at - 9, private_bytes: 8 * MiB, chunks: 12, bytes: { memory: 12 * MiB } }),
      ],
      next_cursor: '', failed_nodes: [],
    },
    alerts: whole([
      {
        fingerprint: 'f0a1', alertname: 'LarderTenantRefused', severity: 'warning', state: 'resolved', tenant: 'code-search', node: nodes[0], summary: 'Blocks of code-search are refused: it rejects at its limit.',
        runbook_url: 'https://runbook.example/refused', generator_url: '', labels: {}, annotations: {}, starts_at: at - 900, ended_at: at - 480, received_at: at - 880, expires_at: at - 480, preceding_changes: [],
      },
    ]),
    'events/history': {
      items: [...overview.recent].reverse().map(({ seq, ...event }) => ({ ...event, id: 48_000 + seq })),
      total: overview.recent.length, next_cursor: '', not_kept: { before: at - 1_209_600, dropped: 0, lost: 0, names: ['blocks.*'] },
    },
    annotations: [
      { time: (at - 12) * 1000, timeEnd: (at - 12) * 1000, title: 'update quota chat', text: 'quota chat: limit_bytes 16 GiB → 24 GiB', tags: ['larder', 'quota'], change: {
        audit_id: null, at: at - 12, actor: 'alice', action: 'update', kind: 'quota', name: 'chat', tenant: 'chat', node: '', type: 'quotas', generation: 14,
        fields: [{ name: 'limit_bytes', before: 16 * GiB, after: 24 * GiB }], summary: 'quota chat: limit_bytes 16 GiB → 24 GiB',
      } },
    ],
  };
}

/** Marks of the charts. */
export const marks = (at) => [
  { at: at - 2_200, kind: 'restart', level: 'warning', title: 'the management plane restarted', node: null, tenant: null, ref: '' },
  { at: at - 900, kind: 'alert', level: 'warning', title: 'LarderTenantRefused fired', node: 'gpu-a1', tenant: 'code-search', ref: '' },
  { at: at - 12, kind: 'change', level: 'info', title: 'update quota chat by alice', node: null, tenant: 'chat', ref: 'audit/1204' },
];

const onNodes = (status, nodes) => {
  const [one] = Object.values(status.nodes);
  return { ...status, nodes: Object.fromEntries(nodes.map((node) => [node, one])) };
};

const push = (id, node, type, generation, sentAt, of = {}) => ({
  id, node, type, generation, digest: String(id).repeat(8), reason: 'change', state: 'acked', attempt: 1, bodies: 6, size_bytes: 1_912, sent_at: sentAt, answered_at: sentAt + 0.012, applied_s: 0.004, faults: [], ...of,
});

const session = (name, node, at, of) => ({
  node, tenant: 'chat', session: name, model: LLAMA, started_at: at - 5_400, used_at: at, released: false, retained_until: null, chunks: 0, bytes: {}, private_bytes: 0, ...of,
});

/** A prefix that two conversations continue, on memory and disk, and one of another tenant. */
function blocks(at, nodes, digest) {
  const made = [];
  const chain = (name, length, parent, of = {}) => {
    let before = parent;
    for (let i = 0; i < length; i += 1) {
      const key = digest(name, i);
      made.push({
        key, parent: before, node: nodes[0], tenant: 'chat', model: LLAMA, space: '9c1f'.repeat(8), tier: 'l1', state: 'ready', strength: '', bytes: 2 * MiB, charged_bytes: 2 * MiB,
        checksum: '', descriptor: made.length, segment: Math.floor(made.length / 128), offset: (made.length % 128) * 2 * MiB, hits: 64 - i, leases: 0, guaranteed: false, pins: [],
        stored_at: at - 7_200 + i, used_at: at - 2 - i, ...of,
      });
      before = key;
    }
    return before;
  };
  const prompt = chain('prompt', 16, '', { pins: ['chat-system-prompt'], strength: 'permanent', guaranteed: true, hits: 12_992 });
  chain('first', 8, prompt, { leases: 1 });
  chain('follow-up', 6, prompt, { tier: 'disk', hits: 2 });
  chain('support', 12, '', { tenant: 'rag-support', model: QWEN, space: '77ab'.repeat(8), bytes: MiB, charged_bytes: MiB, node: nodes[1] });
  return made;
}
