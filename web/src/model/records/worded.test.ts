import { expect, it } from 'vitest';
import { worded } from './worded';

it.each([
  ['admission_idle_s', 3600, '1 h'],
  ['admission_idle_s', 3630, '3,630 s (1 h)'],
  ['max_ttl_s', 90_000, '1 d 1 h'],
  ['max_ttl_s', 90_030, '90,030 s (1 d 1 h)'],
  ['admission_idle_s', 240, '4 min'],
  ['admission_idle_s', 240.4, '240.4 s (4 min)'],
  ['admission_idle_s', 0.4, '0.4 s'],
  ['prefill_tokens_per_s', 1000.25, '1,000.25'],
  ['prefill_tokens_per_s', 0.4, '0.4'],
])('%s of %d is %s', (field, value, words) => expect(worded(field, value)).toBe(words));

it.each(['ttl_s', 'prefill_tokens_per_s', 'limit_bytes', 'weight'])('no change of %s is lost in its words', (field) => {
  const values = [0.5, 1, 59, 60, 61, 3599, 3600, 3601, 3660, 86_399, 86_400, 86_460, 90_000, 90_001, 90_000.5, 1e9, 1e9 + 1];
  expect(new Set(values.map((value) => worded(field, value))).size).toBe(values.length);
});
