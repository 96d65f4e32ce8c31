import { describe, expect, it, vi } from 'vitest';

vi.stubGlobal('location', { hash: '' });
const { linkTo, placeOf } = await import('./route.svelte');

describe('the address', () => {
  it('names a page, one thing on it, and parameters', () => {
    const place = placeOf('#/tenants/a%2Fb%20c?sort=-used&find=x%26y');
    expect([place.page, place.name, place.params.get('sort'), place.params.get('find')]).toEqual(['tenants', 'a/b c', '-used', 'x&y']);
    expect(placeOf('')).toMatchObject({ page: 'overview', name: '' });
    expect(placeOf('#/nothing/here')).toMatchObject({ page: 'overview' });
    expect(placeOf('#/pins/50%')).toMatchObject({ page: 'pins', name: '50%' });
  });

  it('is read as it was written', () => {
    for (const name of ['acme', 'a/b', 'ä ?#%', '..']) expect(placeOf(linkTo('tenants', name, { find: name })).name).toBe(name);
    expect(linkTo('pins', '', { sort: '', find: 'x' })).toBe('#/pins?find=x');
    expect(linkTo('overview')).toBe('#/');
  });
});
