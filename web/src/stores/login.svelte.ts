/** The login of this browser. App creates the only instance. */

import { ApiError, getSession, logIn, logOut } from '../api/client';
import type { Session } from '../api/types';

export interface LoginDeps {
  getSession(): Promise<Session>;
  logIn(token: string): Promise<Session>;
  logOut(csrf: string): Promise<void>;
}

const BROWSER: LoginDeps = { getSession, logIn, logOut };

export class Login {
  /** Null without a login. */
  who = $state.raw<Session | null>(null);
  /** Whether the API requires a login and there is none. */
  needed = $state(false);
  readonly #deps: LoginDeps;

  constructor(deps: LoginDeps = BROWSER) {
    this.#deps = deps;
  }

  /** Read the identity of the session. Neither a missing session nor an unavailable API is an error. */
  async load(): Promise<void> {
    try {
      this.who = await this.#deps.getSession();
      this.needed = false;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.who = null;
      this.needed = error.problem.status === 401;
    }
  }

  /** Raises ApiError. */
  async enter(token: string): Promise<void> {
    this.who = await this.#deps.logIn(token);
    this.needed = false;
  }

  /** End the session here and on the server. If the server is unavailable, the session expires later. */
  async leave(): Promise<void> {
    const csrf = this.who?.csrf_token ?? '';
    this.who = null;
    this.needed = true;
    try {
      await this.#deps.logOut(csrf);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
  }
}
