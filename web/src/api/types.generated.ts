// Made by `npm run api` from the OpenAPI document of the app. Do not edit.

export interface paths {
    "/api/v1/actions/demote": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Make blocks the first victims until they are used again, on every connected node */
        post: operations["demote"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/actions/invalidate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Make blocks unreadable at once, on every connected node; permanent pins keep theirs */
        post: operations["invalidate"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/audit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Who did what, newest first */
        get: operations["listAudit"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Server-sent events: `overview` (Overview) and `fact` (Fact) */
        get: operations["streamEvents"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/events/history": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Facts that were kept, newest first */
        get: operations["listEvents"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/nodes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** All nodes, by name */
        get: operations["listNodes"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/nodes/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** One node */
        get: operations["getNode"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/nodes/{name}/resize": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Let a node's pool grow, now and whenever it comes back smaller */
        post: operations["resizeNode"];
        /** Ask a node for no size any more when it comes back; until it stops, its pool stays as it is */
        delete: operations["forgetSize"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/nodes/{name}/trace": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What engines asked the node for, as JSON lines that `larder replay` reads */
        get: operations["getTrace"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/overview": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The dashboard's whole state now */
        get: operations["getOverview"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/overview/history": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Series for charts, oldest first */
        get: operations["getHistory"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/pins": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Pins, by name */
        get: operations["listPins"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/pins/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** One pin */
        get: operations["getPin"];
        /** Pin a prefix */
        put: operations["putPin"];
        post?: never;
        /** Forget a pin; its blocks are then like any others */
        delete: operations["deletePin"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/policies": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Policies, by name, and what nodes have in force */
        get: operations["listPolicies"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/policies/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** One policy */
        get: operations["getPolicy"];
        /** Set a policy; live, the cache is kept */
        put: operations["putPolicy"];
        post?: never;
        /** Forget a policy; its nodes get another one that matches, or go back to their defaults */
        delete: operations["deletePolicy"];
        options?: never;
        head?: never;
        /** Change some fields of a policy (JSON merge patch: null takes a field back to its default) */
        patch: operations["patchPolicy"];
        trace?: never;
    };
    "/api/v1/prefixes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Prefixes that were served most in the last hour, over all connected nodes */
        get: operations["listPrefixes"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/pushes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What was sent to nodes, newest first */
        get: operations["listPushes"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/quotas": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Quotas, by tenant */
        get: operations["listQuotas"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/quotas/{tenant}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** One tenant's quota */
        get: operations["getQuota"];
        /** Set a tenant's quota */
        put: operations["putQuota"];
        post?: never;
        /** Forget a tenant's quota; the tenant may then use what is free */
        delete: operations["deleteQuota"];
        options?: never;
        head?: never;
        /** Change some fields of a tenant's quota (JSON merge patch: null takes a field back to its default) */
        patch: operations["patchQuota"];
        trace?: never;
    };
    "/api/v1/replicas": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Management planes that share the database, and which of them pushes to nodes */
        get: operations["listReplicas"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/snapshot": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The whole state: all records, and what nodes have applied; waits for the next state when asked */
        get: operations["getSnapshot"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/tenants": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Tenants that keep something, or have a quota or a pin; by name */
        get: operations["listTenants"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/tenants/{tenant}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** How one tenant stands */
        get: operations["getTenant"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/tenants/{tenant}/adopt": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Make a quota, without a cap, for a tenant that has none */
        post: operations["adoptTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/tokenizers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Tokenizers, by name, without their files */
        get: operations["listTokenizers"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/tokenizers/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** One tokenizer, without its file */
        get: operations["getTokenizer"];
        /** Register the tokenizer of a model, so that pins and look-ups can be made from text and messages */
        put: operations["putTokenizer"];
        post?: never;
        /** Forget a tokenizer; what was pinned with it stays pinned */
        delete: operations["deleteTokenizer"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/healthz": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The process is up and the database answers */
        get: operations["getHealth"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/readyz": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Every living node acknowledged the current generations */
        get: operations["getReady"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** ActionAnswer */
        ActionAnswer: {
            items: components["schemas"]["NodeAction"][];
            total: number;
        };
        /** AdoptPost */
        AdoptPost: {
            /**
             * @description Bytes that no other tenant can take: an integer, or text such as `1GiB`.
             * @default 0
             * @example 0
             */
            floor_bytes: number | string;
            /**
             * @description For people; at most 1,024 characters.
             * @default
             */
            note: string;
        };
        /** AuditAnswer */
        AuditAnswer: {
            action: string;
            actor: string;
            after: {
                [key: string]: unknown;
            } | null;
            at: number;
            before: {
                [key: string]: unknown;
            } | null;
            /** @enum {string} */
            decision: "allowed" | "denied";
            generation: number;
            hash: string;
            id: number;
            kind: string;
            name: string;
            reason: string;
            request_id: string;
            source: string;
            token_id: string;
            trace_id: string;
        };
        /** AuditList */
        AuditList: {
            items: components["schemas"]["AuditAnswer"][];
            next_cursor: string;
            total: number;
        };
        /** EngineStats */
        EngineStats: {
            /** @default true */
            alive: boolean;
            attached_at: number;
            client: number;
            connected: boolean;
            engine: string;
            group: string;
            /** @default 0 */
            leased_blocks: number;
            pid: number;
            /** @default 0 */
            quarantined_bytes: number;
            /** @default 0 */
            reserved_bytes: number;
            /** @default 0 */
            ring_dropped: number;
            /** @default 0 */
            ring_invalid: number;
            spaces: string[];
            waits_for_pids?: number[];
        };
        /** EventAnswer */
        EventAnswer: {
            at: number;
            fields: {
                [key: string]: unknown;
            };
            id: number;
            name: string;
            node: string;
        };
        /** EventList */
        EventList: {
            items: components["schemas"]["EventAnswer"][];
            next_cursor: string;
            total: number;
        };
        /** Fact */
        Fact: {
            at: number;
            fields: {
                [key: string]: unknown;
            };
            name: string;
            node: string;
            seq: number;
        };
        /** FieldError */
        FieldError: {
            message: string;
            path: string;
        };
        /** Health */
        Health: {
            release: string;
            /** @constant */
            status: "ok";
        };
        /** NodeAction */
        NodeAction: {
            error: string | null;
            node: string;
            sweep: number | null;
        };
        /** NodeAnswer */
        NodeAnswer: {
            capacity_bytes: number;
            control_url: string;
            desired: {
                [key: string]: number;
            };
            engine_socket: string;
            epoch: string;
            faults: components["schemas"]["NodeFault"][];
            name: string;
            observed: {
                [key: string]: components["schemas"]["ObservedState"];
            };
            pid: number;
            release: string;
            seen_at: number;
            /** @enum {string} */
            state: "joining" | "in_sync" | "behind" | "nacked" | "lost";
            stats: components["schemas"]["NodeNumbers"] | null;
        };
        /** NodeError */
        NodeError: {
            error: string;
            node: string;
        };
        /** NodeFault */
        NodeFault: {
            at: number;
            code: string;
            generation: number;
            message: string;
            path: string;
            type: string;
        };
        /** NodeList */
        NodeList: {
            items: components["schemas"]["NodeAnswer"][];
            total: number;
        };
        /** NodeNumbers */
        NodeNumbers: {
            adopted_blocks: number;
            armed: boolean;
            at: number;
            engines: components["schemas"]["EngineStats"][];
            policy: components["schemas"]["PolicyStats"];
            pool: components["schemas"]["PoolStats"];
            refused: {
                [key: string]: number;
            };
            spaces: components["schemas"]["SpaceStats"][];
            spaces_total: number;
            sweeps: components["schemas"]["SweepStats"][];
            totals: components["schemas"]["Totals"];
            uptime_s: number;
        };
        /** NodeProgress */
        NodeProgress: {
            observed_generation: number | null;
            /** @enum {string} */
            state: "joining" | "in_sync" | "behind" | "nacked" | "lost";
        };
        /** NodeRecord */
        NodeRecord: {
            epoch: string;
            name: string;
            observed: {
                [key: string]: number;
            };
            state: string;
        };
        /** ObservedState */
        ObservedState: {
            digest: string;
            generation: number;
            store: string;
        };
        /** Overview */
        Overview: {
            armed: boolean;
            at: number;
            nodes: components["schemas"]["NodeAnswer"][];
            pins: components["schemas"]["PinAnswer"][];
            pins_total: number;
            policy: components["schemas"]["PolicyAnswer"] | null;
            pool: components["schemas"]["PoolStats"];
            rates: components["schemas"]["Rates"];
            ready: boolean;
            recent: components["schemas"]["Fact"][];
            refused: {
                [key: string]: number;
            };
            tenants: components["schemas"]["TenantAnswer"][];
            tenants_total: number;
            totals: components["schemas"]["Totals"];
        };
        /** PinAnswer */
        PinAnswer: {
            bytes: number;
            created_at: number;
            degraded: number;
            expired: boolean;
            expires_at: number | null;
            generation: number;
            guaranteed: number;
            key_count: number;
            keys_digest: string;
            managed_by: string;
            model: string;
            name: string;
            note: string;
            refresh_on_hit: boolean;
            resident: number;
            resolved: number;
            selector: {
                [key: string]: string;
            } | null;
            status: components["schemas"]["RecordStatus"];
            /** @enum {string} */
            strength: "soft" | "guaranteed" | "permanent";
            tenant: string;
            ttl_s: number | null;
            updated_at: number;
        };
        /** PinList */
        PinList: {
            items: components["schemas"]["PinAnswer"][];
            next_cursor: string;
            total: number;
        };
        /** PinPut */
        PinPut: {
            /**
             * @description Tokens in a chunk, as the engines have it.
             * @default 256
             */
            chunk_tokens: number;
            /** @description Ends then: Unix seconds, or RFC 3339 with an offset. */
            expires_at?: number | string | null;
            /** @description Keys of the chunks, 64 hex digits each. */
            keys?: string[] | null;
            /**
             * @description Whose it is among those who apply files (`larder apply`): one file never deletes the records of another. Empty: nobody's.
             * @default
             */
            managed_by: string;
            /** @description Model name; the pin holds in every space of it. A prefix brings its own. */
            model?: string | null;
            /**
             * @description For people; at most 1,024 characters.
             * @default
             */
            note: string;
            /** @description Label of a hot prefix, as `/prefixes` lists it now. */
            prefix?: string | null;
            /**
             * @description Every hit moves the end to `ttl_s` from then.
             * @default false
             */
            refresh_on_hit: boolean;
            /** @description Only for nodes that have all these labels; null: for every node. */
            selector?: {
                [key: string]: string;
            } | null;
            /**
             * @description `soft`: last to go; `guaranteed`: stays until the end, inside the budgets; `permanent`: as guaranteed, first in line for the budget, untouched by `invalidate`, without an end.
             * @default guaranteed
             * @enum {string}
             */
            strength: "soft" | "guaranteed" | "permanent";
            /** @description Tenant as shown; `_default` (also when left out) for the empty salt. A prefix brings its own. */
            tenant?: string | null;
            /** @description Token ids of the prefix, cut in chunks; only full chunks are cached and pinned. */
            tokens?: number[] | null;
            /** @description Ends this many seconds from now. */
            ttl_s?: number | null;
        };
        /** PinRecord */
        PinRecord: {
            expires_at: number | null;
            generation: number;
            key_count: number;
            keys_digest: string;
            managed_by: string;
            model: string;
            name: string;
            note: string;
            refresh_s: number | null;
            selector: {
                [key: string]: string;
            } | null;
            strength: string;
            tenant: string;
        };
        /** PolicyAnswer */
        PolicyAnswer: {
            admission: boolean;
            admission_idle_s: number;
            /** @enum {string} */
            algorithm: "lru" | "age_class" | "s3fifo" | "arc" | "slru" | "lfu" | "fifo" | "noop";
            created_at: number;
            etag: string;
            generation: number;
            high_watermark: number;
            in_force: {
                [key: string]: components["schemas"]["PolicyStats"];
            };
            low_watermark: number;
            managed_by: string;
            name: string;
            note: string;
            priority: number;
            selector: {
                [key: string]: string;
            } | null;
            status: components["schemas"]["RecordStatus"];
            updated_at: number;
        };
        /** PolicyList */
        PolicyList: {
            in_force: {
                [key: string]: components["schemas"]["PolicyStats"];
            };
            items: components["schemas"]["PolicyAnswer"][];
            next_cursor: string;
            total: number;
        };
        /** PolicyPut */
        PolicyPut: {
            /** @description Under pressure, admit a block only when its key was seen before; false when left out. */
            admission?: boolean;
            /** @description Pressure: victims were idle for less than this; 1 to 86,400. 240 when left out. */
            admission_idle_s?: number;
            /** @description In which order blocks go; `lru` when left out. */
            algorithm?: "lru" | "age_class" | "s3fifo" | "arc" | "slru" | "lfu" | "fifo" | "noop";
            /** @description Above this share of the pool, evict ahead of need; 0.5 to 1. 1 (only at need) when left out. */
            high_watermark?: number;
            /** @description Down to this share; 0.5 to the high watermark. 1 when left out. */
            low_watermark?: number;
            /**
             * @description Whose it is among those who apply files (`larder apply`): one file never deletes the records of another. Empty: nobody's.
             * @default
             */
            managed_by: string;
            /**
             * @description For people; at most 1,024 characters.
             * @default
             */
            note: string;
            /**
             * @description Of several that match a node, the highest is in force; 0 to 1,000, of `default` 0.
             * @default 0
             */
            priority: number;
            /** @description Only for nodes that have all these labels; null: for every node. */
            selector?: {
                [key: string]: string;
            } | null;
        };
        /** PolicyRecord */
        PolicyRecord: {
            admission: boolean;
            admission_idle_s: number;
            algorithm: string;
            generation: number;
            high_watermark: number;
            low_watermark: number;
            managed_by: string;
            name: string;
            note: string;
            priority: number;
            selector: {
                [key: string]: string;
            } | null;
        };
        /** PolicyStats */
        PolicyStats: {
            /** @default false */
            admission: boolean;
            /** @default 240 */
            admission_idle_s: number;
            /** @default 0 */
            admitted_blocks: number;
            /** @default lru */
            algorithm: string;
            /** @default 0 */
            declined_blocks: number;
            /** @default false */
            gate_closed: boolean;
            /** @default 1 */
            high_watermark: number;
            /** @default 1 */
            low_watermark: number;
            victim_idle_s?: number | null;
        };
        /** PoolStats */
        PoolStats: {
            /** @default 0 */
            blocks: number;
            /** @default 0 */
            capacity_bytes: number;
            /** @default 0 */
            committed_bytes: number;
            /** @default 0 */
            free_slot_bytes: number;
            /** @default false */
            huge_pages: boolean;
            /** @default false */
            locked: boolean;
            /** @default 0 */
            max_blocks: number;
            /** @default 0 */
            padding_bytes: number;
            /** @default 0 */
            pin_budget_bytes: number;
            /** @default 0 */
            pinned_bytes: number;
            /** @default 0 */
            prefaulted_bytes: number;
            /** @default 0 */
            quarantined_bytes: number;
            /** @default 0 */
            ready_bytes: number;
            /** @default 0 */
            reserved_bytes: number;
            /** @default 0 */
            segments: number;
            /** @default 0 */
            used_bytes: number;
        };
        /** PrefixAnswer */
        PrefixAnswer: {
            bytes_served: number;
            depth: number;
            error: number;
            hits: number;
            label: string;
            last_used: number;
            model: string;
            nodes: string[];
            resident: number;
            tenant: string;
        };
        /** PrefixList */
        PrefixList: {
            items: components["schemas"]["PrefixAnswer"][];
            silent: components["schemas"]["NodeError"][];
            total: number;
        };
        /** Problem */
        Problem: {
            detail: string;
            errors?: components["schemas"]["FieldError"][];
            instance: string;
            request_id: string;
            status: number;
            title: string;
            type: string;
        };
        /** PushAnswer */
        PushAnswer: {
            answered_at: number | null;
            applied_s: number | null;
            attempt: number;
            bodies: number;
            digest: string;
            faults: components["schemas"]["PushFault"][];
            generation: number;
            id: number;
            node: string;
            /** @enum {string} */
            reason: "joined" | "change" | "drift" | "retry";
            sent_at: number;
            size_bytes: number;
            /** @enum {string} */
            state: "acked" | "nacked" | "timed_out" | "refused";
            /** @enum {string} */
            type: "quotas" | "pins" | "policies";
        };
        /** PushFault */
        PushFault: {
            code: string;
            message: string;
            path: string;
        };
        /** PushList */
        PushList: {
            items: components["schemas"]["PushAnswer"][];
            total: number;
        };
        /** QuotaAnswer */
        QuotaAnswer: {
            blocks: number;
            created_at: number;
            effective_floor_bytes: number | null;
            etag: string;
            floor_bytes: number;
            generation: number;
            limit_bytes: number | null;
            managed_by: string;
            /** @enum {string} */
            mode: "enforce" | "observe";
            note: string;
            /** @enum {string} */
            on_exceed: "evict_self" | "reject";
            over_limit: boolean;
            pin_budget_bytes: number | null;
            pinned_bytes: number;
            refused: {
                [key: string]: number;
            };
            refused_blocks: number;
            selector: {
                [key: string]: string;
            } | null;
            status: components["schemas"]["RecordStatus"];
            store_rate_bytes: number | null;
            tenant: string;
            updated_at: number;
            used_bytes: number;
            weight: number;
            would_refuse_blocks: number;
        };
        /** QuotaList */
        QuotaList: {
            items: components["schemas"]["QuotaAnswer"][];
            next_cursor: string;
            total: number;
        };
        /** QuotaPut */
        QuotaPut: {
            /** @description Bytes that no other tenant can take; at most the limit. 0 when left out. */
            floor_bytes?: number | string;
            /**
             * @description Hard cap; null for no cap.
             * @example 4GiB
             */
            limit_bytes?: number | string | null;
            /**
             * @description Whose it is among those who apply files (`larder apply`): one file never deletes the records of another. Empty: nobody's.
             * @default
             */
            managed_by: string;
            /** @description `enforce` (the default), or `observe`: nothing binds, what would be refused is counted. */
            mode?: "enforce" | "observe";
            /**
             * @description For people; at most 1,024 characters.
             * @default
             */
            note: string;
            /** @description At the limit: make room among the tenant's own blocks (the default), or refuse. */
            on_exceed?: "evict_self" | "reject";
            /** @description Bytes that guaranteed pins may hold: at most the floor (when there is one) and the limit; null for the pool's budget alone. */
            pin_budget_bytes?: number | string | null;
            /** @description Only for nodes that have all these labels; null: for every node. */
            selector?: {
                [key: string]: string;
            } | null;
            /** @description Bytes a second that the tenant may store, at least 1; null for no bound. */
            store_rate_bytes?: number | string | null;
            /** @description Share of what is borrowed, against other tenants: 0.01 to 1,000. 1 when left out. */
            weight?: number;
        };
        /** QuotaRecord */
        QuotaRecord: {
            floor_bytes: number;
            generation: number;
            limit_bytes: number | null;
            managed_by: string;
            mode: string;
            note: string;
            on_exceed: string;
            pin_budget_bytes: number | null;
            selector: {
                [key: string]: string;
            } | null;
            store_rate_bytes: number | null;
            tenant: string;
            weight: number;
        };
        /** Rates */
        Rates: {
            bytes_in_per_s: number;
            bytes_out_per_s: number;
            evicted_blocks_per_s: number;
            hit_ratio: number | null;
            hit_ratio_total: number | null;
        };
        /** Ready */
        Ready: {
            nodes: {
                [key: string]: string;
            };
            /** @constant */
            status: "ready";
        };
        /** RecordStatus */
        RecordStatus: {
            /** @constant */
            accepted: true;
            applied: boolean;
            nodes: {
                [key: string]: components["schemas"]["NodeProgress"];
            };
        };
        /** Records[PinRecord] */
        "Records_app.schemas.snapshot.PinRecord_": {
            digest: string;
            generation: number;
            items: components["schemas"]["PinRecord"][];
        };
        /** Records[PolicyRecord] */
        "Records_app.schemas.snapshot.PolicyRecord_": {
            digest: string;
            generation: number;
            items: components["schemas"]["PolicyRecord"][];
        };
        /** Records[QuotaRecord] */
        "Records_app.schemas.snapshot.QuotaRecord_": {
            digest: string;
            generation: number;
            items: components["schemas"]["QuotaRecord"][];
        };
        /** ReplicaAnswer */
        ReplicaAnswer: {
            alive: boolean;
            answering: boolean;
            host: string;
            id: string;
            pid: number;
            pushing: boolean;
            seen_at: number;
            started_at: number;
            url: string;
        };
        /** ReplicaList */
        ReplicaList: {
            items: components["schemas"]["ReplicaAnswer"][];
            total: number;
        };
        /** ResizeAnswer */
        ResizeAnswer: {
            capacity_bytes: number;
            max_blocks: number | null;
            node: string;
        };
        /** ResizePost */
        ResizePost: {
            /**
             * @description Bytes, or text such as `4GiB`; pools only grow.
             * @example 4GiB
             */
            pool_bytes: number | string;
        };
        /** ScopePost */
        ScopePost: {
            /**
             * @description Tokens in a chunk, as the engines have it.
             * @default 256
             */
            chunk_tokens: number;
            /** @description The same by the keys of its chunks, 64 hex digits each. */
            keys?: string[] | null;
            /** @description All spaces of a model. */
            model?: string | null;
            /** @description One space, by its 32 hex digits; nodes list them. */
            space?: string | null;
            /** @description Tenant as shown; `_default` for the empty salt. */
            tenant?: string | null;
            /** @description Token ids of a prefix: its blocks and everything stored behind it. Needs tenant and model. */
            tokens?: number[] | null;
        };
        /** Series */
        Series: {
            at: number[];
            bytes_in_per_s: number[];
            bytes_out_per_s: number[];
            capacity_bytes: number[];
            hit_ratio: (number | null)[];
            used_bytes: number[];
        };
        /** Snapshot */
        Snapshot: {
            index: number;
            nodes: components["schemas"]["NodeRecord"][];
            pins: components["schemas"]["Records_app.schemas.snapshot.PinRecord_"];
            policies: components["schemas"]["Records_app.schemas.snapshot.PolicyRecord_"];
            quotas: components["schemas"]["Records_app.schemas.snapshot.QuotaRecord_"];
        };
        /** SpaceStats */
        SpaceStats: {
            block_bytes: number;
            blocks: number;
            bytes: number;
            dtype: string;
            model: string;
            padding_bytes: number;
            rank: number;
            revision: string;
            segments: number;
            space: string;
            world_size: number;
        };
        /** SweepStats */
        SweepStats: {
            blocks: number;
            kind: string;
            leased: number;
            sweep: number;
        };
        /** TenantAnswer */
        TenantAnswer: {
            blocks: number;
            bytes: number;
            effective_floor_bytes: number | null;
            evicted_blocks: number;
            floor_bytes: number;
            hit_blocks: number;
            hit_ratio: number | null;
            limit_bytes: number | null;
            managed: boolean;
            mode: string;
            note: string;
            on_exceed: string;
            over_limit: boolean;
            pin_budget_bytes: number | null;
            pinned_bytes: number;
            pins: number;
            refused: {
                [key: string]: number;
            };
            refused_blocks: number;
            requested_blocks: number;
            store_rate_bytes: number | null;
            stored_blocks: number;
            tenant: string;
            weight: number;
            would_refuse_blocks: number;
        };
        /** TenantList */
        TenantList: {
            items: components["schemas"]["TenantAnswer"][];
            next_cursor: string;
            total: number;
        };
        /** TokenizerAnswer */
        TokenizerAnswer: {
            add_special_tokens: boolean;
            chat_template: string | null;
            created_at: number;
            digest: string;
            etag: string;
            model: string;
            name: string;
            note: string;
            revision: number;
            special_tokens: {
                [key: string]: string;
            } | null;
            updated_at: number;
        };
        /** TokenizerList */
        TokenizerList: {
            items: components["schemas"]["TokenizerAnswer"][];
            next_cursor: string;
            total: number;
        };
        /** TokenizerPut */
        TokenizerPut: {
            /**
             * @description The tokenizer adds its special tokens around a `text`, as engines do for completions; around `messages` only the template's stand.
             * @default true
             */
            add_special_tokens: boolean;
            /** @description Jinja, with `messages`, `add_generation_prompt` and the special tokens; for `messages`. */
            chat_template?: string | null;
            /** @description Model name, as engines attach with it; one tokenizer for each. */
            model: string;
            /**
             * @description For people; at most 1,024 characters.
             * @default
             */
            note: string;
            /** @description For the template, such as `bos_token` and `eos_token`. */
            special_tokens?: {
                [key: string]: string;
            } | null;
            /** @description The Hugging Face `tokenizer.json`, as an object or as the file's text; at most 32 MiB. */
            tokenizer: {
                [key: string]: unknown;
            } | string;
        };
        /** Totals */
        Totals: {
            /** @default 0 */
            aborted_blocks: number;
            /** @default 0 */
            bytes_in: number;
            /** @default 0 */
            bytes_out: number;
            /** @default 0 */
            corrupt_blocks: number;
            /** @default 0 */
            events_dropped: number;
            /** @default 0 */
            evicted_blocks: number;
            /** @default 0 */
            evicted_bytes: number;
            /** @default 0 */
            false_reports: number;
            /** @default 0 */
            hit_blocks: number;
            /** @default 0 */
            invalidated_blocks: number;
            /** @default 0 */
            malformed_messages: number;
            /** @default 0 */
            put_back_blocks: number;
            /** @default 0 */
            quarantined_blocks: number;
            /** @default 0 */
            refused_blocks: number;
            /** @default 0 */
            requested_blocks: number;
            /** @default 0 */
            ring_dropped: number;
            /** @default 0 */
            ring_invalid: number;
            /** @default 0 */
            stored_blocks: number;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    demote: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ScopePost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ActionAnswer"];
                };
            };
            /** @description `urn:larder:problem:malformed`: The request could not be read */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-large`: The body is too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unsupported-media-type`: The body is not JSON */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:node-unreachable`: The node is not connected or does not answer; `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    invalidate: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ScopePost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ActionAnswer"];
                };
            };
            /** @description `urn:larder:problem:malformed`: The request could not be read */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-large`: The body is too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unsupported-media-type`: The body is not JSON */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:node-unreachable`: The node is not connected or does not answer; `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listAudit: {
        parameters: {
            query?: {
                /** @description At most this many items. */
                limit?: number;
                /** @description `next_cursor` of the page before; of the first page, none. */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AuditList"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    streamEvents: {
        parameters: {
            query?: never;
            header?: {
                /** @description `id` of the last `fact`: those after it come first. */
                "Last-Event-ID"?: string | null;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Data of `fact` events. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": components["schemas"]["Fact"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listEvents: {
        parameters: {
            query?: {
                /** @description Only of this name; `push.*` for all that begin with `push.`. */
                name?: string | null;
                /** @description Only of this node. */
                node?: string | null;
                /** @description Only from this time on, Unix seconds. */
                since?: number | null;
                /** @description Field to sort by, with `-` in front for descending. */
                sort?: string;
                /** @description At most this many items. */
                limit?: number;
                /** @description `next_cursor` of the page before; of the first page, none. */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["EventList"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listNodes: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeList"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getNode: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeAnswer"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    resizeNode: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ResizePost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ResizeAnswer"];
                };
            };
            /** @description `urn:larder:problem:malformed`: The request could not be read */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:node-refused`: A node will not do what it was asked */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-large`: The body is too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unsupported-media-type`: The body is not JSON */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:node-unreachable`: The node is not connected or does not answer; `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    forgetSize: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getTrace: {
        parameters: {
            query?: {
                /** @description How far back; nodes keep about an hour. */
                since_s?: number;
            };
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description One request a line. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/x-ndjson": string;
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:node-refused`: A node will not do what it was asked */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:node-unreachable`: The node is not connected or does not answer; `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getOverview: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Overview"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getHistory: {
        parameters: {
            query?: {
                /** @description How far back; an hour is kept. */
                seconds?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Series"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listPins: {
        parameters: {
            query?: {
                /** @description Only of this tenant, as shown. */
                tenant?: string | null;
                /** @description Only of this model. */
                model?: string | null;
                /** @description Only of this strength. */
                strength?: "soft" | "guaranteed" | "permanent" | null;
                /** @description Only of this owner. */
                managed_by?: string | null;
                /** @description Field to sort by, with `-` in front for descending. */
                sort?: string;
                /** @description At most this many items. */
                limit?: number;
                /** @description `next_cursor` of the page before; of the first page, none. */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinList"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getPin: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinAnswer"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    putPin: {
        parameters: {
            query?: {
                /** @description Answer after the nodes acknowledged, at most this long: `2s`, `500ms`; at most 30 s. */
                wait?: string;
            };
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PinPut"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinAnswer"];
                };
            };
            /** @description The record is new. */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinAnswer"];
                };
            };
            /** @description `urn:larder:problem:malformed`: The request could not be read */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-large`: The body is too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unsupported-media-type`: The body is not JSON */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:node-unreachable`: The node is not connected or does not answer; `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    deletePin: {
        parameters: {
            query?: {
                /** @description Answer after the nodes acknowledged, at most this long: `2s`, `500ms`; at most 30 s. */
                wait?: string;
            };
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listPolicies: {
        parameters: {
            query?: {
                /** @description Only of this algorithm. */
                algorithm?: "lru" | "age_class" | "s3fifo" | "arc" | "slru" | "lfu" | "fifo" | "noop" | null;
                /** @description Only of this owner. */
                managed_by?: string | null;
                /** @description Field to sort by, with `-` in front for descending. */
                sort?: string;
                /** @description At most this many items. */
                limit?: number;
                /** @description `next_cursor` of the page before; of the first page, none. */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyList"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getPolicy: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyAnswer"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    putPolicy: {
        parameters: {
            query?: {
                /** @description Answer after the nodes acknowledged, at most this long: `2s`, `500ms`; at most 30 s. */
                wait?: string;
            };
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string | null;
                /** @description `*`: only when there is no such record yet. */
                "If-None-Match"?: string | null;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PolicyPut"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyAnswer"];
                };
            };
            /** @description The record is new. */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyAnswer"];
                };
            };
            /** @description `urn:larder:problem:malformed`: The request could not be read */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-failed`: The record is in another state than expected */
            412: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-large`: The body is too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unsupported-media-type`: The body is not JSON */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-required`: The request must say which state of the record it knows */
            428: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    deletePolicy: {
        parameters: {
            query?: {
                /** @description Answer after the nodes acknowledged, at most this long: `2s`, `500ms`; at most 30 s. */
                wait?: string;
            };
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string | null;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `urn:larder:problem:malformed`: The request could not be read */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-failed`: The record is in another state than expected */
            412: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-required`: The request must say which state of the record it knows */
            428: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    patchPolicy: {
        parameters: {
            query?: {
                /** @description Answer after the nodes acknowledged, at most this long: `2s`, `500ms`; at most 30 s. */
                wait?: string;
            };
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string | null;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/merge-patch+json": {
                    [key: string]: unknown;
                };
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyAnswer"];
                };
            };
            /** @description `urn:larder:problem:malformed`: The request could not be read */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-failed`: The record is in another state than expected */
            412: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-large`: The body is too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unsupported-media-type`: The body is not JSON */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-required`: The request must say which state of the record it knows */
            428: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listPrefixes: {
        parameters: {
            query?: {
                /** @description Hottest by bytes served, or by hits. */
                by?: "bytes" | "hits";
                /** @description Only this tenant, as shown. */
                tenant?: string | null;
                /** @description At most this many items. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PrefixList"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:node-unreachable`: The node is not connected or does not answer; `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listPushes: {
        parameters: {
            query?: {
                /** @description Only this type. */
                type?: "quotas" | "pins" | "policies" | null;
                /** @description Only this node. */
                node?: string | null;
                /** @description Only this state. */
                state?: "acked" | "nacked" | "timed_out" | "refused" | null;
                /** @description At most this many items. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PushList"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listQuotas: {
        parameters: {
            query?: {
                /** @description Only of this mode. */
                mode?: "enforce" | "observe" | null;
                /** @description Only of this owner. */
                managed_by?: string | null;
                /** @description Field to sort by, with `-` in front for descending. */
                sort?: string;
                /** @description At most this many items. */
                limit?: number;
                /** @description `next_cursor` of the page before; of the first page, none. */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaList"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getQuota: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaAnswer"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    putQuota: {
        parameters: {
            query?: {
                /** @description Answer after the nodes acknowledged, at most this long: `2s`, `500ms`; at most 30 s. */
                wait?: string;
            };
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string | null;
                /** @description `*`: only when there is no such record yet. */
                "If-None-Match"?: string | null;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["QuotaPut"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaAnswer"];
                };
            };
            /** @description The record is new. */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaAnswer"];
                };
            };
            /** @description `urn:larder:problem:malformed`: The request could not be read */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:floors-exceed-capacity`: The floors of all tenants are more than a node holds */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-failed`: The record is in another state than expected */
            412: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-large`: The body is too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unsupported-media-type`: The body is not JSON */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-required`: The request must say which state of the record it knows */
            428: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    deleteQuota: {
        parameters: {
            query?: {
                /** @description Answer after the nodes acknowledged, at most this long: `2s`, `500ms`; at most 30 s. */
                wait?: string;
            };
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string | null;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `urn:larder:problem:malformed`: The request could not be read */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-failed`: The record is in another state than expected */
            412: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-required`: The request must say which state of the record it knows */
            428: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    patchQuota: {
        parameters: {
            query?: {
                /** @description Answer after the nodes acknowledged, at most this long: `2s`, `500ms`; at most 30 s. */
                wait?: string;
            };
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string | null;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/merge-patch+json": {
                    [key: string]: unknown;
                };
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaAnswer"];
                };
            };
            /** @description `urn:larder:problem:malformed`: The request could not be read */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:floors-exceed-capacity`: The floors of all tenants are more than a node holds */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-failed`: The record is in another state than expected */
            412: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-large`: The body is too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unsupported-media-type`: The body is not JSON */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-required`: The request must say which state of the record it knows */
            428: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listReplicas: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ReplicaList"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getSnapshot: {
        parameters: {
            query?: {
                /** @description `index` of the last answer: wait for a newer one. */
                index?: number;
                /** @description With `index`: answer with the present state after this time (`30s`, `500ms`; at most 300 s) and up to a sixteenth more. */
                wait?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The header has the index, too. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Snapshot"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listTenants: {
        parameters: {
            query?: {
                /** @description Only those that have a quota (true) or have none (false). */
                managed?: boolean | null;
                /** @description Field to sort by, with `-` in front for descending. */
                sort?: string;
                /** @description At most this many items. */
                limit?: number;
                /** @description `next_cursor` of the page before; of the first page, none. */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantList"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantAnswer"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    adoptTenant: {
        parameters: {
            query?: {
                /** @description Answer after the nodes acknowledged, at most this long: `2s`, `500ms`; at most 30 s. */
                wait?: string;
            };
            header?: never;
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AdoptPost"];
            };
        };
        responses: {
            /** @description Document created, URL follows */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaAnswer"];
                };
            };
            /** @description `urn:larder:problem:malformed`: The request could not be read */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:conflict`: Something that is there stands against it; `urn:larder:problem:floors-exceed-capacity`: The floors of all tenants are more than a node holds */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-large`: The body is too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unsupported-media-type`: The body is not JSON */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listTokenizers: {
        parameters: {
            query?: {
                /** @description Field to sort by, with `-` in front for descending. */
                sort?: string;
                /** @description At most this many items. */
                limit?: number;
                /** @description `next_cursor` of the page before; of the first page, none. */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenizerList"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getTokenizer: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenizerAnswer"];
                };
            };
            /** @description Bad request syntax or unsupported method */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        detail: string;
                        extra?: null | {
                            [key: string]: unknown;
                        } | unknown[];
                        status_code: number;
                    };
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    putTokenizer: {
        parameters: {
            query?: never;
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string | null;
                /** @description `*`: only when there is no such record yet. */
                "If-None-Match"?: string | null;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TokenizerPut"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenizerAnswer"];
                };
            };
            /** @description The record is new. */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenizerAnswer"];
                };
            };
            /** @description `urn:larder:problem:malformed`: The request could not be read */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:conflict`: Something that is there stands against it */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-failed`: The record is in another state than expected */
            412: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-large`: The body is too large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unsupported-media-type`: The body is not JSON */
            415: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-required`: The request must say which state of the record it knows */
            428: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    deleteTokenizer: {
        parameters: {
            query?: never;
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string | null;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `urn:larder:problem:malformed`: The request could not be read */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-found`: There is no such thing */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-failed`: The record is in another state than expected */
            412: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:invalid`: Some fields have values that cannot be */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:precondition-required`: The request must say which state of the record it knows */
            428: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getHealth: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Health"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getReady: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Ready"];
                };
            };
            /** @description `urn:larder:problem:unauthorized`: It is not known who asks */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:too-many-requests`: Too many requests */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:internal`: Larder failed */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `urn:larder:problem:not-ready`: Not every node has what it should have; `urn:larder:problem:store-unavailable`: The database does not answer */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
}
