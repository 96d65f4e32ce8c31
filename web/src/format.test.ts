import { describe, expect, it } from 'vitest';
import { read } from './api/read';
import { ago, bytes, bytesPerSecond, count, duration, named, percent, plural, share, sizeOf } from './format';

const KiB = 1024;
const MiB = 1024 * KiB;
const GiB = 1024 * MiB;

describe('sizes', () => {
  it.each([
    [0, '0 B'],
    [1023, '1,023 B'],
    [1023.5, '1 KiB'],
    [KiB, '1 KiB'],
    [1.5 * GiB, '1.5 GiB'],
    [1.125 * GiB, '1.12 GiB'],
    [1.135 * GiB, '1.14 GiB'],
    [47.7 * GiB, '47.7 GiB'],
    [512 * MiB, '512 MiB'],
    [100.5 * MiB, '100 MiB'],
    [999.6 * MiB, '1,000 MiB'],
    [1023.4 * MiB, '1,023 MiB'],
    [2 ** 60, '1 EiB'],
    [2 ** 70, '1,024 EiB'],
    [-3 * KiB, '-3 KiB'],
  ])('%d bytes are %s, as on the command line', (value, text) => expect(bytes(value)).toBe(text));

  it.each([
    ['4GiB', 4 * GiB],
    [' 1.5 MiB ', 1.5 * MiB],
    ['40M', 40_000_000],
    ['40MB', 40_000_000],
    ['40mi', 40 * MiB],
    ['1,024MiB', GiB],
    ['1000', 1000],
    ['1.9', 1],
    ['12 b', 12],
    ['1,02MiB', null],
    ['4 apples', null],
    ['1.2.3', null],
    ['', null],
  ])('%j is %s bytes, as the API reads it', (text, value) => expect(sizeOf(text)).toBe(value));

  it('says per second for a rate', () => expect(bytesPerSecond(2 * MiB)).toBe('2 MiB/s'));
});

describe('counts', () => {
  it.each([
    [0, '0'],
    [90_843, '90,843'],
    [99_999, '99,999'],
    [131_072, '131 k'],
    [999_700, '1.00 M'],
    [18_402_118, '18.4 M'],
  ])('%d is %s', (value, text) => expect(count(value)).toBe(text));

  it('agrees with its noun', () => {
    expect(plural(1, 'node')).toBe('1 node');
    expect(plural(0, 'node')).toBe('0 nodes');
    expect(plural(2_000, 'entry', 'entries')).toBe('2,000 entries');
  });
});

describe('names of others', () => {
  it.each([
    ['acme', 'acme'],
    ['a b', 'a b'],
    ['tenant\u202eemca', 'tenant\\u202eemca'],
    ['zero\u200bwidth', 'zero\\u200bwidth'],
    ['no\u00a0break', 'no\\xa0break'],
    ['tag\u{e0041}', 'tag\\U000e0041'],
    ['ключ-鍵', 'ключ-鍵'],
    ['back\\slash "quoted"\n', 'back\\slash "quoted"\n'],
  ])('%j is shown as %j', (name, shown) => expect(read(JSON.stringify({ name }))).toEqual({ name: shown }));

  it('sees through escapes of JSON, and into the names of fields', () =>
    expect(read('{"a\\u200b": ["\\u202eb", 1]}')).toEqual({ 'a\\u200b': ['\\u202eb', 1] }));

  it('shows blanks in quotes', () => {
    expect(named('acme')).toBe('acme');
    expect(named('  ')).toBe("'\u00a0\u00a0'");
  });
});

describe('ratios', () => {
  it.each([
    [null, '–'],
    [Number.NaN, '–'],
    [0, '0 %'],
    [0.0001, '<0.1 %'],
    [0.8123, '81.2 %'],
    [0.99999, '99.9 %'],
    [1, '100 %'],
    [1.0917, '109.2 %'],
  ])('%d is %s', (value, text) => expect(percent(value)).toBe(text));

  it('is a share between 0 and 1, also of nothing', () => {
    expect(share(1, 0)).toBe(0);
    expect(share(3, 2)).toBe(1);
    expect(share(-1, 2)).toBe(0);
  });
});

describe('times', () => {
  it.each([
    [-5, '0 s'],
    [59.4, '59 s'],
    [60, '1 min'],
    [204, '3 min 24 s'],
    [7_980, '2 h 13 min'],
    [3 * 86_400, '3 d'],
    [3 * 86_400 + 3_600, '3 d 1 h'],
  ])('%d seconds are %s', (value, text) => expect(duration(value)).toBe(text));

  it('calls a moment ago now', () => {
    expect(ago(0.9)).toBe('now');
    expect(ago(12)).toBe('12 s ago');
  });
});
