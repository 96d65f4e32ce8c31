// Made by `npm run api` from the OpenAPI document of the app. Do not edit.

export interface paths {
    "/api/v1/audit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Who changed what, newest first */
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
        /** All pins, by name */
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
        /** All quotas, by tenant */
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
        /** AuditAnswer */
        AuditAnswer: {
            /** @enum {string} */
            action: "create" | "update" | "delete";
            actor: string;
            after: {
                [key: string]: unknown;
            } | null;
            at: number;
            before: {
                [key: string]: unknown;
            } | null;
            generation: number;
            id: number;
            /** @enum {string} */
            kind: "quota" | "pin";
            name: string;
            request_id: string;
        };
        /** AuditList */
        AuditList: {
            items: components["schemas"]["AuditAnswer"][];
            total: number;
        };
        /** EngineStats */
        EngineStats: {
            attached_at: number;
            client: number;
            connected: boolean;
            engine: string;
            group: string;
            pid: number;
            /** @default 0 */
            quarantined_bytes: number;
            /** @default 0 */
            reserved_bytes: number;
            /** @default 0 */
            ring_dropped: number;
            spaces: string[];
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
            armed: boolean;
            at: number;
            engines: components["schemas"]["EngineStats"][];
            pool: components["schemas"]["PoolStats"];
            refused: {
                [key: string]: number;
            };
            totals: components["schemas"]["Totals"];
            uptime_s: number;
        };
        /** NodeProgress */
        NodeProgress: {
            observed_generation: number | null;
            /** @enum {string} */
            state: "joining" | "in_sync" | "behind" | "nacked" | "lost";
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
            expired: boolean;
            expires_at: number | null;
            generation: number;
            guaranteed: number;
            key_count: number;
            keys_digest: string;
            model: string;
            name: string;
            note: string;
            resident: number;
            resolved: number;
            status: components["schemas"]["RecordStatus"];
            /** @constant */
            strength: "guaranteed";
            tenant: string;
            updated_at: number;
        };
        /** PinList */
        PinList: {
            items: components["schemas"]["PinAnswer"][];
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
            /** @description Model name; the pin holds in every space of it. */
            model: string;
            /**
             * @description For people; at most 1,024 characters.
             * @default
             */
            note: string;
            /**
             * @default guaranteed
             * @constant
             */
            strength: "guaranteed";
            /**
             * @description Tenant as shown; `_default` for the empty salt.
             * @default _default
             */
            tenant: string;
            /** @description Token ids of the prefix, cut in chunks; only full chunks are cached and pinned. */
            tokens?: number[] | null;
            /** @description Ends this many seconds from now. */
            ttl_s?: number | null;
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
            max_blocks: number;
            /** @default 0 */
            padding_bytes: number;
            /** @default 0 */
            pin_budget_bytes: number;
            /** @default 0 */
            pinned_bytes: number;
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
            type: "quotas" | "pins";
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
            generation: number;
            limit_bytes: number | null;
            note: string;
            over_limit: boolean;
            status: components["schemas"]["RecordStatus"];
            tenant: string;
            updated_at: number;
            used_bytes: number;
        };
        /** QuotaList */
        QuotaList: {
            items: components["schemas"]["QuotaAnswer"][];
            total: number;
        };
        /** QuotaPut */
        QuotaPut: {
            /**
             * @description Hard cap in bytes, or text such as `4GiB`; null for no cap.
             * @example 4GiB
             */
            limit_bytes: number | string | null;
            /**
             * @description For people; at most 1,024 characters.
             * @default
             */
            note: string;
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
        /** Series */
        Series: {
            at: number[];
            bytes_in_per_s: number[];
            bytes_out_per_s: number[];
            capacity_bytes: number[];
            hit_ratio: (number | null)[];
            used_bytes: number[];
        };
        /** TenantAnswer */
        TenantAnswer: {
            blocks: number;
            bytes: number;
            evicted_blocks: number;
            hit_blocks: number;
            limit_bytes: number | null;
            managed: boolean;
            note: string;
            over_limit: boolean;
            refused_blocks: number;
            requested_blocks: number;
            stored_blocks: number;
            tenant: string;
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
            events_dropped: number;
            /** @default 0 */
            evicted_blocks: number;
            /** @default 0 */
            evicted_bytes: number;
            /** @default 0 */
            hit_blocks: number;
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
    listAudit: {
        parameters: {
            query?: {
                /** @description At most this many items. */
                limit?: number;
                /** @description Skip this many items. */
                offset?: number;
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
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
            header?: never;
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
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
                /** @description At most this many items. */
                limit?: number;
                /** @description Skip this many items. */
                offset?: number;
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
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
    listPushes: {
        parameters: {
            query?: {
                /** @description Only this type. */
                type?: "quotas" | "pins" | null;
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
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
                /** @description At most this many items. */
                limit?: number;
                /** @description Skip this many items. */
                offset?: number;
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
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
            header?: never;
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
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
            header?: never;
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
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
            /** @description `urn:larder:problem:foreign-origin`: The request comes from a page or a name that is not Larder's */
            403: {
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
