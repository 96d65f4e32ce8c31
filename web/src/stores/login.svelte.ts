/** Who is logged in at this browser. One instance, made by App. */

import { ApiError, getSession, logIn, logOut } from '../api/client';
import type { Session } from '../api/types';

export interface LoginDeps {
  getSession(): Promise<Session>;
  logIn(token: string): Promise<Session>;
  logOut(csrf: string): Promise<void>;
}

const BROWSER: LoginDeps = { getSession, logIn, logOut };

export class Login {
  /** Null when nobody is known. */
  who = $state.raw<Session | null>(null);
  /** The API wants to know who asks, and does not. */
  needed = $state(false);
  readonly #deps: LoginDeps;

  constructor(deps: LoginDeps = BROWSER) {
    this.#deps = deps;
  }

  /** Asks who the cookie is; nobody is not a failure, and neither is an API that does not answer now. */
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

  /** Ends the session here and on the server; a server that is away ends it by its time. */
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
