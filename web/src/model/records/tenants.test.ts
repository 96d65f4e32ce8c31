import { expect, it } from 'vitest';
import { state } from '../../fixtures/states';
import { floorShort, floorText, shareText, tenantsOf } from './tenants';

it('a share says what is not as for everybody, and a floor that is not wholly in effect', () => {
  const plain = state('busy').overview.tenants.find((tenant) => tenant.tenant === 'rag-support');
  if (!plain) throw new Error('no such tenant');
  expect([floorText(plain), shareText(plain)]).toEqual(['', '']);
  const GiB = 1024 ** 3;
  const short = { ...plain, floor_bytes: 2 * GiB, effective_floor_bytes: GiB, weight: 2, pin_budget_bytes: GiB, would_refuse_blocks: 1 };
  expect(floorShort(short)).toBe(true);
  expect(floorText(short)).toBe('floor 2 GiB, 1 GiB in effect');
  expect(floorText({ ...short, effective_floor_bytes: null })).toBe('floor 2 GiB');
  expect(shareText(short)).toBe('0 B pinned of 1 GiB · weight 2 · would refuse 1 block');
});

it('names of tenants are taken as they are, one in each line', () => {
  expect(tenantsOf(' team a \n\nacme, inc\r\nx')).toEqual(['team a', 'acme, inc', 'x']);
  expect(tenantsOf(' \n')).toBeNull();
});
