import { expect, test } from 'vitest';
import type { Engine, Gateway } from '../../api/types';
import { refusedClients, refusedOf, releaseOf } from './gateway_clients';

const CLIENT = { pid: 7, release: '0.5.7', unknown: '', refused: 0, reason: '', connected: true };
const gateway = (...clients: Gateway['clients']) => ({ clients }) as Gateway;
const engine = (pid: number) => ({ pid }) as Engine;

test('only clients with refused requests or of an unknown release have a line', () => {
  const refused = { ...CLIENT, refused: 2, reason: 'lookup: expected token_ids or token_bytes, got neither' };
  const unknown = { ...CLIENT, pid: 0, release: '', unknown: "unknown operation 'x'" };
  expect(refusedClients(gateway(refused, unknown, CLIENT))).toEqual([
    'Client pid 7 (LMCache 0.5.7): 2 requests refused, the last one: lookup: expected token_ids or token_bytes, got neither',
    "A client sends what no known release sends: unknown operation 'x'. 0 requests refused",
  ]);
});

test('an engine has the release and the refused requests of its process', () => {
  const clients = gateway({ ...CLIENT, release: '' }, { ...CLIENT, refused: 3 }, { ...CLIENT, connected: false, refused: 9 });
  expect([releaseOf(clients, engine(7)), refusedOf(clients, engine(7))]).toEqual(['0.5.7', 3]);
  expect([releaseOf(clients, engine(8)), refusedOf(clients, engine(0)), releaseOf(null, engine(7))]).toEqual(['', 0, '']);
});
