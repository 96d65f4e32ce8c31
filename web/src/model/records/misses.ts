/** Why tokens were computed that a cache could have had, for a reader who chooses what to change. */

const MEANING: Record<string, string> = {
  too_short: 'The prompt has no whole chunk, and only whole chunks are stored.',
  recompute_faster: 'They were cached, and computing them was expected to be faster than loading them.',
  tier_late: 'A tier held them, but they were not in memory when the request was scheduled.',
  load_failed: 'Their load failed or took too long.',
  not_used: "The request, or the engine's role, excludes loads.",
  unkeyed: 'The request has no keys.',
  data_plane_away: 'The engine was not attached to a data plane.',
  evicted: 'They were evicted from memory and from all tiers: the pool, the tiers or a limit is too small.',
  expired: 'The time to live that their request asked for had passed.',
  invalidated: 'An operator invalidated them, or their space or tier was cleared.',
  corrupt: 'Their bytes did not match their checksum.',
  refused: 'Storing them was refused.',
  being_stored: 'Another request was storing them.',
  tier_away: 'Only a tier that is out of service holds them.',
  other_space: 'They are cached for engines with another dtype, parallelism, revision or adapter.',
  never_stored: 'Nobody had stored them.',
  other: 'A reason of a newer release.',
};

export function missMeaning(reason: string): string {
  return MEANING[reason] ?? '';
}
