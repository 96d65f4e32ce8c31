// Made by `npm run api` from the OpenAPI document of the app. Do not edit.

export interface paths {
    "/api/v1/actions/clear": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Clear the cache; blocks under permanent pins stay unless the request includes them
         * @description Needs the role `operator`, not limited to tenants.
         */
        post: operations["clear"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/actions/compress": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Encode the blocks of a tier again, with the current `compress` of its record
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        post: operations["compressBlocks"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/actions/demote": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Demote blocks: they are evicted first until they are used again
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        post: operations["demote"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/actions/dry-run": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Validate records on the nodes without applying or storing them
         * @description Needs the role `operator`, not limited to tenants.
         */
        post: operations["dryRun"];
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
        /**
         * Invalidate blocks: they become unreadable at once, unless a permanent pin holds them
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        post: operations["invalidate"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/actions/locate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Look up the nodes that hold the start of a prefix, best first, and their engine sockets
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        post: operations["locate"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/actions/lookup": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Look up how much of a prefix each node would serve now, by tier
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        post: operations["lookup"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/actions/move": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Copy blocks to a tier, with or without removing them from memory, or load them into memory
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        post: operations["moveBlocks"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/actions/move/{node}/{number}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get the progress of a move
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getMove"];
        put?: never;
        post?: never;
        /**
         * Cancel a move; blocks that have been moved stay moved
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        delete: operations["cancelMove"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/actions/restart": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Restart Larder with its cache; refused if the cache would be lost
         * @description Needs the role `operator`, not limited to tenants.
         */
        post: operations["restart"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/actions/verify": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Verify the checksums of blocks in the background; corrupt blocks become misses
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        post: operations["verify"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/actions/verify/{node}/{number}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get the progress of a verification
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getVerification"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/alerts": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List alerts with the changes that preceded them, newest first
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["listAlerts"];
        put?: never;
        /**
         * Webhook of Alertmanager (version 4) and Grafana alerting: store firing and resolved alerts
         * @description Needs the role `operator` or `alerts`, not limited to tenants.
         */
        post: operations["postAlerts"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/annotations": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List applied changes as annotations for Grafana, oldest first
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["listAnnotations"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/apply": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Apply a document: all of its changes, or none
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        post: operations["applyDocument"];
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
        /**
         * List audit entries, newest first: changes, actions and denied requests
         * @description Needs the role `admin`, not limited to tenants.
         */
        get: operations["listAudit"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/audit/export": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Export the audit log as JSON lines, oldest first
         * @description Needs the role `admin`, not limited to tenants.
         */
        get: operations["exportAudit"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/audit/verify": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Verify that no audit entry was changed, removed, moved or added
         * @description Needs the role `admin`, not limited to tenants.
         */
        get: operations["verifyAudit"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/blocks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List cached blocks of each node
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["listBlocks"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/blocks/{key}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get the blocks of one key on every node and in every space
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getBlock"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/ceilings": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List ceilings; callers that are limited to tenants see only those of their tenants
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["listCeilings"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/ceilings/{tenant}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get a tenant's ceiling: bounds for callers that are limited to the tenant
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getCeiling"];
        /**
         * Set a tenant's ceiling; quotas above it stay until they are changed
         * @description Needs the role `admin`, not limited to tenants.
         */
        put: operations["putCeiling"];
        post?: never;
        /**
         * Delete a tenant's ceiling; callers that are limited to the tenant may then not change its quota
         * @description Needs the role `admin`, not limited to tenants.
         */
        delete: operations["deleteCeiling"];
        options?: never;
        head?: never;
        /**
         * Change some fields of a tenant's ceiling (JSON merge patch: null resets a field to its default)
         * @description Needs the role `admin`, not limited to tenants.
         */
        patch: operations["patchCeiling"];
        trace?: never;
    };
    "/api/v1/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Stream server-sent events: `overview` (Overview) and `event` (LarderEvent)
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
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
        /**
         * List stored events, newest first
         * @description Needs the role `viewer`, not limited to tenants.
         */
        get: operations["listEvents"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/export": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Export records as a document that can be applied
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["exportDocument"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/findings": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List what is wrong, or was, with the change that most likely caused it: what explains most comes first. With `tenant` or `node`, findings about the fleet are listed too
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["listFindings"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/ipc": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List message queues and object stores in shared memory, as each node's data plane sees them
         * @description Needs the role `viewer`, not limited to tenants.
         */
        get: operations["listIpc"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/join-tokens": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List join tokens, newest first, without their secrets
         * @description Needs the role `admin`, not limited to tenants.
         */
        get: operations["listJoinTokens"];
        put?: never;
        /**
         * Create a token with which data planes join the fleet; it is shown only once
         * @description Needs the role `admin`, not limited to tenants.
         */
        post: operations["createJoinToken"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/join-tokens/{ident}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Revoke a join token; nodes that joined with it stay in the fleet
         * @description Needs the role `admin`, not limited to tenants.
         */
        delete: operations["deleteJoinToken"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/managers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the managers that share the database, and the one that pushes to nodes
         * @description Needs the role `viewer`, not limited to tenants.
         */
        get: operations["listManagers"];
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
        /**
         * List nodes; callers that are limited to tenants see only names, states and sizes
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
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
        /**
         * Get a node; callers that are limited to tenants see only its name, state and size
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getNode"];
        put?: never;
        post?: never;
        /**
         * Remove a node, which must then join again; refused while the node is connected and not drained
         * @description Needs the role `admin`, not limited to tenants.
         */
        delete: operations["forgetNode"];
        options?: never;
        head?: never;
        /**
         * Override labels that the node reports (JSON merge patch: null removes an override)
         * @description Needs the role `operator`, not limited to tenants.
         */
        patch: operations["patchNode"];
        trace?: never;
    };
    "/api/v1/nodes/{name}/drain": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Drain a node, or end the drain: a draining node accepts no engines and stores no blocks, but serves reads
         * @description Needs the role `operator`, not limited to tenants.
         */
        post: operations["drainNode"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/nodes/{name}/engines/{client}/expel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Expel an engine's process: drop its leases and bar it from attaching, or kill it
         * @description Needs the role `operator`, not limited to tenants.
         */
        post: operations["expelEngine"];
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
        /**
         * Enlarge a node's pool, now and whenever the node returns with a smaller one
         * @description Needs the role `operator`, not limited to tenants.
         */
        post: operations["resizeNode"];
        /**
         * Withdraw the requested size of a node's pool; the pool keeps its size until the node stops
         * @description Needs the role `operator`, not limited to tenants.
         */
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
        /**
         * Export the access trace of a node as JSON lines that `larder replay` reads
         * @description Needs the role `operator`, not limited to tenants.
         */
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
        /**
         * Get the current state that the dashboard shows
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getOverview"];
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
        /**
         * List pins
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
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
        /**
         * Get a pin
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getPin"];
        /**
         * Pin a prefix
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        put: operations["putPin"];
        post?: never;
        /**
         * Delete a pin; its blocks may then be evicted like any others
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        delete: operations["deletePin"];
        options?: never;
        head?: never;
        /**
         * Change a pin's strength, tier, expiry or note (JSON merge patch); the pinned prefix stays the same
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        patch: operations["patchPin"];
        trace?: never;
    };
    "/api/v1/pins/{name}/keys": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get the keys of a pin
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getPinKeys"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/pins/{name}:extend": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Extend a pin to at least `ttl_s` from now
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        post: operations["extendPin"];
        delete?: never;
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
        /**
         * List policies, and those that nodes have in force
         * @description Needs the role `viewer`, not limited to tenants.
         */
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
        /**
         * Get a policy
         * @description Needs the role `viewer`, not limited to tenants.
         */
        get: operations["getPolicy"];
        /**
         * Set a policy; running nodes switch to it and keep the cache
         * @description Needs the role `operator`, not limited to tenants.
         */
        put: operations["putPolicy"];
        post?: never;
        /**
         * Delete a policy; its nodes apply another one that matches, or their defaults
         * @description Needs the role `operator`, not limited to tenants.
         */
        delete: operations["deletePolicy"];
        options?: never;
        head?: never;
        /**
         * Change some fields of a policy (JSON merge patch: null resets a field to its default)
         * @description Needs the role `operator`, not limited to tenants.
         */
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
        /**
         * List the most served prefixes of the last hour over all connected nodes
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
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
        /**
         * List pushes to nodes, newest first
         * @description Needs the role `viewer`, not limited to tenants.
         */
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
        /**
         * List quotas
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
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
        /**
         * Get a tenant's quota
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getQuota"];
        /**
         * Set a tenant's quota
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        put: operations["putQuota"];
        post?: never;
        /**
         * Delete a tenant's quota; the tenant may then use free memory without a limit or a floor
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        delete: operations["deleteQuota"];
        options?: never;
        head?: never;
        /**
         * Change some fields of a tenant's quota (JSON merge patch: null resets a field to its default)
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        patch: operations["patchQuota"];
        trace?: never;
    };
    "/api/v1/rates": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List prefill rates
         * @description Needs the role `viewer`, not limited to tenants.
         */
        get: operations["listRates"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/rates/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get a prefill rate
         * @description Needs the role `viewer`, not limited to tenants.
         */
        get: operations["getRate"];
        /**
         * Set a prefill rate: the tokens per second that a model's engines compute
         * @description Needs the role `operator`, not limited to tenants.
         */
        put: operations["putRate"];
        post?: never;
        /**
         * Delete a prefill rate
         * @description Needs the role `operator`, not limited to tenants.
         */
        delete: operations["deleteRate"];
        options?: never;
        head?: never;
        /**
         * Change some fields of a prefill rate (JSON merge patch: null resets a field to its default)
         * @description Needs the role `operator`, not limited to tenants.
         */
        patch: operations["patchRate"];
        trace?: never;
    };
    "/api/v1/requests": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Find what a request got from the cache, and why not more. Nodes remember the last 4,096 requests of engines
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["findRequests"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/series": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get series for charts with the changes, alerts, crashes and restarts of the same time
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getSeries"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/series/names": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the names of the series with their units and meanings
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["listSeriesNames"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/session": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get the identity of the session, and the CSRF token that changes need (`X-CSRF-Token`)
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getSession"];
        put?: never;
        /**
         * Log in with a token; the answer sets a session cookie that is valid for 12 hours
         * @description Needs no token.
         */
        post: operations["logIn"];
        /**
         * End the session
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        delete: operations["logOut"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/sessions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the sessions of each node that its data plane knows since its last start
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["listSessions"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/sessions/{session}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get a session on every node that knows it
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getSessionState"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/sessions/{session}:prefetch": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Prefetch a session: load its blocks that only tiers hold into memory, before its next turn
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        post: operations["prefetchSession"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/sessions/{session}:release": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Release a session: make its private blocks the first victims; blocks that others share stay
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        post: operations["releaseSession"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/sessions/{session}:retain": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Retain a session: evict its blocks after the tenant's other blocks, for a bounded time
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        post: operations["retainSession"];
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
        /**
         * Get all records and what nodes have applied; optionally wait for the next state
         * @description Needs the role `viewer`, not limited to tenants.
         */
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
        /**
         * List tenants that hold blocks or have a quota or a pin
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
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
        /**
         * Get a tenant's usage and limits
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
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
        /**
         * Create a quota without a limit for a tenant that has none
         * @description Needs the role `operator`, which may be limited to tenants.
         */
        post: operations["adoptTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/tiers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List tiers, and their state on nodes
         * @description Needs the role `viewer`, not limited to tenants.
         */
        get: operations["listTiers"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/tiers/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get a tier
         * @description Needs the role `viewer`, not limited to tenants.
         */
        get: operations["getTier"];
        /**
         * Set a tier; running nodes open it, or change it and keep its blocks
         * @description Needs the role `operator`, not limited to tenants.
         */
        put: operations["putTier"];
        post?: never;
        /**
         * Delete a tier; its nodes close it, and its blocks stay where they are
         * @description Needs the role `operator`, not limited to tenants.
         */
        delete: operations["deleteTier"];
        options?: never;
        head?: never;
        /**
         * Change some fields of a tier (JSON merge patch: null resets a field to its default)
         * @description Needs the role `operator`, not limited to tenants.
         */
        patch: operations["patchTier"];
        trace?: never;
    };
    "/api/v1/tokenizers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List tokenizers, without their files
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
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
        /**
         * Get a tokenizer, without its file
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getTokenizer"];
        /**
         * Register the tokenizer of a model, so that pins and look-ups accept text and messages
         * @description Needs the role `operator`, not limited to tenants.
         */
        put: operations["putTokenizer"];
        post?: never;
        /**
         * Delete a tokenizer; pins that were created with it stay
         * @description Needs the role `operator`, not limited to tenants.
         */
        delete: operations["deleteTokenizer"];
        options?: never;
        head?: never;
        /**
         * Change some fields of a tokenizer (JSON merge patch: null resets a field to its default); its file stays unless the patch has one
         * @description Needs the role `operator`, not limited to tenants.
         */
        patch: operations["patchTokenizer"];
        trace?: never;
    };
    "/api/v1/tokens": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List tokens, without their secrets
         * @description Needs the role `admin`, not limited to tenants.
         */
        get: operations["listTokens"];
        put?: never;
        /**
         * Create a token; only this answer contains its secret
         * @description Needs the role `admin`, not limited to tenants.
         */
        post: operations["createToken"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/tokens/{token_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get a token by its id or name, without its secret
         * @description Needs the role `admin`, not limited to tenants.
         */
        get: operations["getToken"];
        put?: never;
        post?: never;
        /**
         * Revoke a token and end its sessions; every manager rejects it within two seconds
         * @description Needs the role `admin`, not limited to tenants.
         */
        delete: operations["revokeToken"];
        options?: never;
        head?: never;
        /**
         * Rename a token, or change its expiry
         * @description Needs the role `admin`, not limited to tenants.
         */
        patch: operations["patchToken"];
        trace?: never;
    };
    "/api/v1/usage": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get usage by tenant, model or node, per hour or day (UTC), as JSON or CSV
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getUsage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/whoami": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get the identity of the caller
         * @description Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["whoami"];
        put?: never;
        post?: never;
        delete?: never;
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
        /**
         * Check that the process runs and the database answers
         * @description Needs no token unless the setting `anonymous_health` is false. Then: Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getHealth"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/healthz/fleet": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * No node is lost, and every node acknowledged the current generations
         * @description Needs no token unless the setting `anonymous_health` is false. Then: Needs the role `viewer`, which may be limited to tenants.
         */
        get: operations["getFleetHealth"];
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
        /**
         * Check that this process serves the API, whatever the state of the nodes, and that the embedded data plane has served
         * @description Needs no token unless the setting `anonymous_health` is false. Then: Needs the role `viewer`, which may be limited to tenants.
         */
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
            /** @default 0 */
            blocks: number;
            /** @default 0 */
            bytes: number;
            items: components["schemas"]["NodeSweep"][];
            tokenizer?: components["schemas"]["TokenizerUsed"] | null;
            total: number;
        };
        /**
         * AdoptPost
         * @description The new quota of an adopted tenant. It has no limit, so no block of the tenant is evicted because of it.
         * @example {
         *       "floor_bytes": "256MiB",
         *       "note": "found"
         *     }
         */
        AdoptPost: {
            /**
             * @description Bytes that no other tenant's store may evict: an integer, or text such as `1GiB`.
             * @default 0
             * @example 0
             */
            floor_bytes: number | string;
            /**
             * @description Free-form note; at most 1,024 characters.
             * @default
             */
            note: string;
        };
        /** AgentSessionAnswer */
        AgentSessionAnswer: {
            bytes: {
                [key: string]: number;
            };
            chunks: number;
            model: string;
            node: string;
            private_bytes: number;
            released: boolean;
            retained_until: number | null;
            session: string;
            started_at: number;
            tenant: string;
            used_at: number;
        };
        /** AgentSessionCopies */
        AgentSessionCopies: {
            failed_nodes: components["schemas"]["NodeError"][];
            items: components["schemas"]["AgentSessionAnswer"][];
            session: string;
            total: number;
        };
        /** AgentSessionList */
        AgentSessionList: {
            failed_nodes: components["schemas"]["NodeError"][];
            items: components["schemas"]["AgentSessionAnswer"][];
            next_cursor: string;
        };
        /**
         * AgentSessionPost
         * @description The tenant of the session, and how long the action holds.
         * @example {
         *       "seconds": 60,
         *       "tenant": "acme"
         *     }
         */
        AgentSessionPost: {
            /** @description Name of one node. */
            node?: string | null;
            /** @description Names of several nodes. */
            nodes?: string[] | null;
            /** @description `retain`: how long, 300 by default; nodes shorten it to their `dataplane.hint_max_s`. `prefetch`: time after which no load begins, 60 by default, at most 300. Has no effect on `release`. */
            seconds?: number | null;
            /** @description Tenant, as shown; defaults to the only one that the token is limited to, or else to `_default`. */
            tenant?: string | null;
        } & (unknown | {
            node: unknown;
        } | {
            nodes: unknown;
        });
        /** AlertAnswer */
        AlertAnswer: {
            alertname: string;
            annotations: {
                [key: string]: string;
            };
            ended_at: number | null;
            expires_at: number;
            fingerprint: string;
            generator_url: string;
            labels: {
                [key: string]: string;
            };
            node: string;
            preceding_changes: components["schemas"]["ChangeAnswer"][];
            received_at: number;
            runbook_url: string;
            severity: string;
            starts_at: number;
            /** @enum {string} */
            state: "firing" | "resolved" | "expired";
            summary: string;
            tenant: string;
        };
        /** AlertList */
        AlertList: {
            items: components["schemas"]["AlertAnswer"][];
            next_cursor: string;
            total: number;
        };
        /**
         * AlertsPost
         * @description Body of a webhook of Alertmanager (version 4) or Grafana alerting (version 1). Unknown fields are ignored.
         * @example {
         *       "alerts": [
         *         {
         *           "annotations": {
         *             "summary": "Blocks of acme are refused."
         *           },
         *           "endsAt": "0001-01-01T00:00:00Z",
         *           "labels": {
         *             "alertname": "LarderTenantRefused",
         *             "severity": "warning",
         *             "tenant": "acme"
         *           },
         *           "startsAt": "2026-01-31T12:00:00Z",
         *           "status": "firing"
         *         }
         *       ],
         *       "version": "4"
         *     }
         */
        AlertsPost: {
            alerts: components["schemas"]["WebhookAlert"][];
            /**
             * @description Alerts that the sender left out.
             * @default 0
             */
            truncatedAlerts: number;
            /**
             * @description `4` of Alertmanager, `1` of Grafana.
             * @enum {string}
             */
            version: "4" | "1";
        };
        /** AlertsTaken */
        AlertsTaken: {
            fired: number;
            repeated: number;
            resolved: number;
            truncated: number;
        };
        /** Annotation */
        Annotation: {
            change: components["schemas"]["ChangeAnswer"];
            tags: string[];
            text: string;
            time: number;
            timeEnd: number;
            title: string;
        };
        /** ApplyAnswer */
        ApplyAnswer: {
            created: number;
            deleted: number;
            dry_run: boolean;
            generations: {
                [key: string]: number;
            };
            records: components["schemas"]["RecordChange"][];
            status: {
                [key: string]: components["schemas"]["TypeStatus"];
            };
            unchanged: number;
            updated: number;
        };
        /**
         * ApplyPut
         * @description Documents to apply, and options.
         * @example {
         *       "document": {
         *         "apiVersion": "larder/v1",
         *         "managed_by": "team-search",
         *         "quotas": [
         *           {
         *             "limit_bytes": "512MiB",
         *             "tenant": "search"
         *           }
         *         ]
         *       },
         *       "dry_run": true
         *     }
         */
        ApplyPut: {
            /** @description One or more documents `{apiVersion: larder/v1, managed_by: NAME, quotas: …, pins: …, policies: …, tiers: …}`, as JSON values or as YAML or JSON text. Each record has the fields of its PUT body. Records are lists whose items have a `tenant` or `name`, or maps keyed by it. */
            document: components["schemas"]["Document"] | string | (components["schemas"]["Document"] | string)[];
            /**
             * @description Report the changes without making them.
             * @default false
             */
            dry_run: boolean;
            /** @description `generations` of an earlier answer: refuse the request if a record has changed since then. */
            expect?: {
                [key: string]: number;
            } | null;
            /**
             * @description Owner of the record in `larder apply`: applying one owner's file never deletes another owner's records. Empty for no owner.
             * @default
             */
            managed_by: string;
            /**
             * @description Delete records of this owner, of all types, that are not in the document.
             * @default false
             */
            prune: boolean;
            /**
             * @description Take over records that have another owner or none.
             * @default false
             */
            take_over: boolean;
        };
        /** AuditEntry */
        AuditEntry: {
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
            decision: "allowed" | "denied" | "unreadable";
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
            type: string;
        };
        /** AuditList */
        AuditList: {
            items: components["schemas"]["AuditEntry"][];
            next_cursor: string;
            total: number;
        };
        /** AuditVerified */
        AuditVerified: {
            entries: number;
            fault: string;
            head_hash: string;
            head_id: number;
            intact: boolean;
        };
        /** BlockAnswer */
        BlockAnswer: {
            bytes: number;
            charged_bytes: number;
            checksum: string;
            descriptor: number;
            guaranteed: boolean;
            hits: number;
            key: string;
            leases: number;
            model: string;
            node: string;
            offset: number;
            parent: string;
            pins: string[];
            segment: number;
            space: string;
            state: string;
            stored_at: number;
            strength: string;
            tenant: string;
            tier: string;
            used_at: number;
        };
        /** BlockCopies */
        BlockCopies: {
            failed_nodes: components["schemas"]["NodeError"][];
            items: components["schemas"]["BlockAnswer"][];
            key: string;
            total: number;
        };
        /** BlockList */
        BlockList: {
            failed_nodes: components["schemas"]["NodeError"][];
            items: components["schemas"]["BlockAnswer"][];
            next_cursor: string;
        };
        /** CacheStart */
        CacheStart: {
            /** @default 0 */
            at: number;
            /** @default 0 */
            blocks: number;
            /** @default 0 */
            bytes: number;
            /**
             * @default unknown
             * @enum {string}
             */
            kind: "unknown" | "first" | "warm" | "cold";
            /** @default 0 */
            lost_blocks: number;
            /** @default 0 */
            lost_bytes: number;
            /** @default  */
            reason: string;
            /** @default false */
            released: boolean;
        };
        /** CeilingAnswer */
        CeilingAnswer: {
            created_at: number;
            etag: string;
            max_floor_bytes: number | null;
            max_limit_bytes: number | null;
            max_pin_budget_bytes: number | null;
            max_store_rate_bytes: number | null;
            max_ttl_s: number | null;
            max_weight: number | null;
            no_bound: ("max_limit_bytes" | "max_floor_bytes" | "max_weight" | "max_pin_budget_bytes" | "max_store_rate_bytes" | "max_ttl_s")[];
            note: string;
            revision: number;
            strengths: ("soft" | "guaranteed" | "permanent")[] | null;
            tenant: string;
            updated_at: number;
        };
        /** CeilingList */
        CeilingList: {
            items: components["schemas"]["CeilingAnswer"][];
            next_cursor: string;
            total: number;
        };
        /**
         * CeilingPatch
         * @description Fields to change; omitted fields keep their values, and null resets a field to its default.
         * @example {
         *       "max_weight": 4
         *     }
         */
        CeilingPatch: {
            /** @description Bytes, or text such as `4GiB`; without one, the value may not be raised, unless `no_bound` names the field. */
            max_floor_bytes?: number | string | null;
            /** @description Bytes, or text such as `4GiB`; without one, the value may not be raised, unless `no_bound` names the field. */
            max_limit_bytes?: number | string | null;
            /** @description Bytes, or text such as `4GiB`; without one, the value may not be raised, unless `no_bound` names the field. */
            max_pin_budget_bytes?: number | string | null;
            /** @description Bytes, or text such as `4GiB`; without one, the value may not be raised, unless `no_bound` names the field. */
            max_store_rate_bytes?: number | string | null;
            /** @description Longest time to live of a pin in seconds, by default without a limit. */
            max_ttl_s?: number | null;
            /** @description 0.01 to 1,000; without one, the value may not be raised, unless `no_bound` names the field. */
            max_weight?: number | null;
            /** @description Fields without any bound; `max_ttl_s` is always one of them if it is null. */
            no_bound?: ("max_limit_bytes" | "max_floor_bytes" | "max_weight" | "max_pin_budget_bytes" | "max_store_rate_bytes" | "max_ttl_s")[] | null;
            /** @description Free-form note; at most 1,024 characters. */
            note?: string | null;
            /** @description Strengths that pins may have, by default `soft` and `guaranteed`. */
            strengths?: ("soft" | "guaranteed" | "permanent")[] | null;
        };
        /**
         * CeilingPut
         * @description The ceiling of a tenant. If a field is omitted, the tenant's own operators may lower the value in the quota but not raise it. A quota field that means "unbounded" exceeds every ceiling.
         * @example {
         *       "max_floor_bytes": "1GiB",
         *       "max_limit_bytes": "8GiB",
         *       "max_ttl_s": 604800,
         *       "max_weight": 2,
         *       "strengths": [
         *         "soft",
         *         "guaranteed"
         *       ]
         *     }
         */
        CeilingPut: {
            /** @description Bytes, or text such as `4GiB`; without one, the value may not be raised, unless `no_bound` names the field. */
            max_floor_bytes?: number | string | null;
            /** @description Bytes, or text such as `4GiB`; without one, the value may not be raised, unless `no_bound` names the field. */
            max_limit_bytes?: number | string | null;
            /** @description Bytes, or text such as `4GiB`; without one, the value may not be raised, unless `no_bound` names the field. */
            max_pin_budget_bytes?: number | string | null;
            /** @description Bytes, or text such as `4GiB`; without one, the value may not be raised, unless `no_bound` names the field. */
            max_store_rate_bytes?: number | string | null;
            /** @description Longest time to live of a pin in seconds, by default without a limit. */
            max_ttl_s?: number | null;
            /** @description 0.01 to 1,000; without one, the value may not be raised, unless `no_bound` names the field. */
            max_weight?: number | null;
            /** @description Fields without any bound; `max_ttl_s` is always one of them if it is null. */
            no_bound?: ("max_limit_bytes" | "max_floor_bytes" | "max_weight" | "max_pin_budget_bytes" | "max_store_rate_bytes" | "max_ttl_s")[];
            /**
             * @description Free-form note; at most 1,024 characters.
             * @default
             */
            note: string;
            /** @description Strengths that pins may have, by default `soft` and `guaranteed`. */
            strengths?: ("soft" | "guaranteed" | "permanent")[] | null;
        };
        /** ChangeAnswer */
        ChangeAnswer: {
            action: string;
            actor: string;
            at: number;
            audit_id: number | null;
            fields: components["schemas"]["ChangedField"][];
            generation: number;
            kind: string;
            name: string;
            node: string;
            summary: string;
            tenant: string;
            type: string;
        };
        /** ChangedField */
        ChangedField: {
            after: unknown;
            before: unknown;
            name: string;
        };
        /**
         * ClearPost
         * @description Drop all cached blocks.
         * @example {
         *       "confirm": true,
         *       "dry_run": true,
         *       "node": "node-1"
         *     }
         */
        ClearPost: {
            /**
             * @description Must be true to confirm that everything is dropped.
             * @constant
             */
            confirm: true;
            /**
             * @description Only count the blocks, without changing them.
             * @default false
             */
            dry_run: boolean;
            /** @description Name of one node. */
            node?: string | null;
            /** @description Names of several nodes. */
            nodes?: string[] | null;
            /**
             * @description Also drop blocks under permanent pins. The pins remain, and hold the blocks again once they are stored again.
             * @default false
             */
            permanent: boolean;
        } & (unknown | {
            node: unknown;
        } | {
            nodes: unknown;
        });
        /**
         * CompressPost
         * @description Selects the blocks that match every given field. Without fields, it selects all blocks of the tier. A prefix includes all blocks that were stored after it.
         * @example {
         *       "dry_run": true,
         *       "tenant": "acme",
         *       "tier": "archive"
         *     }
         */
        CompressPost: {
            /**
             * @description Append the template's generation prompt after the messages.
             * @default false
             */
            add_generation_prompt: boolean;
            /**
             * @description Tokens per chunk, as configured in the engines.
             * @default 256
             */
            chunk_tokens: number;
            /**
             * @description Seconds after which blocks that have not been encoded stay as they are.
             * @default 300
             */
            deadline_s: number;
            /**
             * @description Only count the blocks, without encoding them.
             * @default false
             */
            dry_run: boolean;
            /** @description Keys of the chunks, 64 hex digits each. */
            keys?: string[] | null;
            /** @description Messages of a chat, rendered with the tokenizer's chat template. */
            messages?: Record<string, never>[] | null;
            /** @description Model, with all of its spaces. */
            model?: string | null;
            /** @description Name of one node. */
            node?: string | null;
            /** @description Names of several nodes. */
            nodes?: string[] | null;
            /** @description One space: 32 hex digits, as nodes list it. */
            space?: string | null;
            /** @description Tenant, as shown; `_default` is the empty salt. */
            tenant?: string | null;
            /** @description Text, which the tokenizer registered for the model turns into tokens. */
            text?: string | null;
            /** @description Name of the tier whose blocks are encoded again, with the current `compress` of its record. */
            tier: string;
            /** @description Token ids, split into chunks; only full chunks count. */
            tokens?: number[] | null;
        } & ((unknown | {
            node: unknown;
        } | {
            nodes: unknown;
        }) & unknown & (unknown | {
            tokens: unknown;
        } | {
            keys: unknown;
        } | {
            text: unknown;
        } | {
            messages: unknown;
        }) & unknown);
        /** Condition */
        Condition: {
            message: string;
            reason: string;
            since: number;
            /** @enum {string} */
            status: "True" | "False" | "Unknown";
            /** @enum {string} */
            type: "Accepted" | "Applied" | "Effective";
        };
        /** Document */
        Document: {
            /** @constant */
            apiVersion: "larder/v1";
            managed_by?: string | null;
            pins?: {
                [key: string]: components["schemas"]["PinPut"];
            } | components["schemas"]["PinEntry"][] | null;
            policies?: {
                [key: string]: components["schemas"]["PolicyPut"];
            } | components["schemas"]["PolicyEntry"][] | null;
            quotas?: {
                [key: string]: components["schemas"]["QuotaPut"];
            } | components["schemas"]["QuotaEntry"][] | null;
            tiers?: {
                [key: string]: components["schemas"]["TierPut"];
            } | components["schemas"]["TierEntry"][] | null;
        };
        /**
         * DrainPost
         * @example {
         *       "on": true
         *     }
         */
        DrainPost: {
            on: boolean;
        };
        /** DryRunAnswer */
        DryRunAnswer: {
            accepted: boolean;
            items: components["schemas"]["NodeVerdict"][];
            total: number;
        };
        /** DryRunFault */
        DryRunFault: {
            code: string;
            message: string;
            path: string;
        };
        /**
         * DryRunPost
         * @description Records to try, in place of the existing ones.
         * @example {
         *       "quotas": {
         *         "acme": {
         *           "limit_bytes": "4GiB"
         *         }
         *       }
         *     }
         */
        DryRunPost: ({
            /** @description Name of one node. */
            node?: string | null;
            /** @description Names of several nodes. */
            nodes?: string[] | null;
            /** @description Pins by name. */
            pins?: {
                [key: string]: components["schemas"]["PinPut"];
            } | null;
            /** @description At most one policy, by name; it is checked as if it were in force. */
            policies?: {
                [key: string]: components["schemas"]["PolicyPut"];
            } | null;
            /** @description Quotas by tenant, as shown. */
            quotas?: {
                [key: string]: components["schemas"]["QuotaPut"];
            } | null;
            /** @description Tiers by name. A node that a tier does not select checks its other tiers. */
            tiers?: {
                [key: string]: components["schemas"]["TierPut"];
            } | null;
        } & (unknown | {
            node: unknown;
        } | {
            nodes: unknown;
        })) | {
            quotas: unknown;
        } | {
            pins: unknown;
        } | {
            policies: unknown;
        } | {
            tiers: unknown;
        };
        /** EngineStats */
        EngineStats: {
            /** @default true */
            alive: boolean;
            attached_at: number;
            client: number;
            connected: boolean;
            engine: string;
            /** @default  */
            expelled: string;
            group: string;
            /** @default 0 */
            leased_blocks: number;
            pid: number;
            /** @default 0 */
            quarantined_bytes: number;
            /** @default 0 */
            read_bytes: number;
            /** @default 0 */
            read_tokens: number;
            /** @default 0 */
            reserved_bytes: number;
            /** @default 0 */
            ring_dropped: number;
            /** @default 0 */
            ring_entries_rejected: number;
            spaces: string[];
            /** @default 0 */
            stored_bytes: number;
            waits_for_pids?: number[];
        };
        /** EventAnswer */
        EventAnswer: {
            actor: string;
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
            not_kept: components["schemas"]["EventsNotKept"];
            total: number;
        };
        /** EventsNotKept */
        EventsNotKept: {
            before: number;
            dropped: number;
            lost: number;
            names: string[];
        };
        /** Eviction */
        Eviction: {
            bytes: number;
            tenant: string;
            tier: string;
        };
        /** ExpelAnswer */
        ExpelAnswer: {
            clients: number[];
            dropped: boolean;
            killed: boolean;
            leased_blocks: number;
            node: string;
            pid: number;
            quarantined_bytes: number;
            waits_for_pids: number[];
        };
        /**
         * ExpelPost
         * @description Whether to expel, kill or readmit the process of an engine, in all its attachments.
         * @example {
         *       "force": false,
         *       "kill": true,
         *       "on": true
         *     }
         */
        ExpelPost: {
            /** @default false */
            force: boolean;
            /** @default false */
            kill: boolean;
            /** @default true */
            on: boolean;
        } & unknown;
        /** ExportAnswer */
        ExportAnswer: {
            document: components["schemas"]["Document"];
            ended: number;
            generations: {
                [key: string]: number;
            };
        };
        /** FieldChange */
        FieldChange: {
            after: unknown;
            before: unknown;
        };
        /** FieldError */
        FieldError: {
            message: string;
            path: string;
        };
        /** Finding */
        Finding: {
            code: string;
            /** @default 1 */
            count: number;
            detail: string;
            ended_at: number | null;
            likely_change: components["schemas"]["ChangeAnswer"] | null;
            runbook: string;
            /** @enum {string} */
            severity: "critical" | "warning" | "info";
            since: number | null;
            subject: components["schemas"]["FindingSubject"];
            to_do: string;
            what: string;
        };
        /** FindingList */
        FindingList: {
            cause: string;
            items: components["schemas"]["Finding"][];
            total: number;
        };
        /** FindingSubject */
        FindingSubject: {
            /** @enum {string} */
            kind: "fleet" | "node" | "tier" | "tenant" | "pin" | "policy" | "actor";
            /** @default  */
            name: string;
            /** @default  */
            node: string;
            /** @default  */
            tenant: string;
        };
        /** FleetHealth */
        FleetHealth: {
            /** @default  */
            database: string;
            nodes: {
                [key: string]: string;
            };
            /** @constant */
            status: "ok";
        };
        /** GatewayClient */
        GatewayClient: {
            connected: boolean;
            pid: number;
            reason: string;
            refused: number;
            release: string;
            unknown: string;
        };
        /** GatewayInstance */
        GatewayInstance: {
            /** @default true */
            attached: boolean;
            chunk_bytes: number;
            client: number;
            copies: boolean;
            dtype: string;
            instance: number;
            layout: string;
            model: string;
            pid: number;
            silent_s: number;
            world_size: number;
        };
        /** GpuCopyPoolStats */
        GpuCopyPoolStats: {
            capacity_bytes: number;
            /** @default 0 */
            copied_blocks: number;
            /** @default 0 */
            copied_bytes: number;
            copying: number;
            device: string;
            /** @default 0 */
            evicted_blocks: number;
            /** @default 0 */
            failed_copies: number;
            gpu_copies: number;
            gpu_copy_bytes: number;
            /** @default 0 */
            leaving_bytes: number;
            name: string;
            /** @default  */
            problem: string;
            /** @default 0 */
            read_blocks: number;
            /** @default 0 */
            readers: number;
            used_bytes: number;
            wanted: number;
        };
        /** Health */
        Health: {
            instance: string;
            release: string;
            /** @constant */
            status: "ok";
        };
        /** IpcQueueStats */
        IpcQueueStats: {
            bytes: number;
            /** @default 0 */
            bytes_per_s: number;
            capacity_bytes: number;
            dead_readers: number;
            dropped: number;
            identity: string;
            lag_bytes: number;
            messages: number;
            /** @default 0 */
            messages_per_s: number;
            name: string;
            readers: number;
            /** @default 0 */
            remote_readers: number;
            waits: number;
            writer: number;
        };
        /** IpcStoreStats */
        IpcStoreStats: {
            /** @default 0 */
            bytes_per_s: number;
            data_bytes: number;
            dead_processes: number;
            evictions: number;
            hits: number;
            identity: string;
            misses: number;
            name: string;
            objects: number | null;
            processes: number;
            put_bytes: number;
            puts: number;
            /** @default 0 */
            puts_per_s: number;
            used_bytes: number | null;
        };
        /** JoinTokenAnswer */
        JoinTokenAnswer: {
            created_at: number;
            created_by: string;
            expires_at: number | null;
            id: string;
            labels: {
                [key: string]: string;
            };
            last_used_at: number | null;
            name: string;
            nodes: string[];
            uses_left: number | null;
        };
        /** JoinTokenList */
        JoinTokenList: {
            items: components["schemas"]["JoinTokenAnswer"][];
            total: number;
        };
        /**
         * JoinTokenPost
         * @description A join token to create.
         * @example {
         *       "labels": {
         *         "rack": "7"
         *       },
         *       "name": "rack-7",
         *       "ttl_s": 3600,
         *       "uses": 1
         *     }
         */
        JoinTokenPost: {
            /** @description Addresses at which nodes reach the join socket, such as `tcp://10.0.0.1:8471`. Defaults to `app.join_addresses`, or else to `app.join_url`. */
            addresses?: string[];
            /** @description Labels for nodes that join with the token; they override the labels that the nodes report. */
            labels?: {
                [key: string]: string;
            };
            /**
             * @description Free-form purpose of the token; at most 128 characters.
             * @default
             */
            name: string;
            /**
             * @description Time to live in seconds; null for no expiry.
             * @default 86400
             */
            ttl_s: number | null;
            /**
             * @description Number of nodes that may join with the token, 1 to 10,000; null for no limit.
             * @default 1
             */
            uses: number | null;
        };
        /** LarderEvent */
        LarderEvent: {
            /** @default  */
            actor: string;
            at: number;
            fields: {
                [key: string]: unknown;
            };
            name: string;
            node: string;
            seq: number;
        };
        /** LocateAnswer */
        LocateAnswer: {
            chunk_tokens: number;
            chunks: number;
            failed_nodes: components["schemas"]["NodeAction"][];
            items: components["schemas"]["PrefixLocation"][];
            tokenizer: components["schemas"]["TokenizerUsed"] | null;
            total: number;
        };
        /** LookupAnswer */
        LookupAnswer: {
            chunk_tokens: number;
            chunks: number;
            items: components["schemas"]["NodeLookup"][];
            tokenizer: components["schemas"]["TokenizerUsed"] | null;
            total: number;
        };
        /**
         * LookupPost
         * @description A prefix in one tenant and one model.
         * @example {
         *       "chunk_tokens": 4,
         *       "model": "llama",
         *       "tenant": "acme",
         *       "tokens": [
         *         1,
         *         2,
         *         3,
         *         4
         *       ]
         *     }
         */
        LookupPost: ({
            /**
             * @description Append the template's generation prompt after the messages.
             * @default false
             */
            add_generation_prompt: boolean;
            /**
             * @description Tokens per chunk, as configured in the engines.
             * @default 256
             */
            chunk_tokens: number;
            /** @description Keys of the chunks, 64 hex digits each. */
            keys?: string[] | null;
            /** @description Messages of a chat, rendered with the tokenizer's chat template. */
            messages?: Record<string, never>[] | null;
            /** @description Model name with which engines attach. */
            model: string;
            /** @description Name of one node. */
            node?: string | null;
            /** @description Names of several nodes. */
            nodes?: string[] | null;
            /** @description Tenant, as shown; defaults to `_default`, the empty salt. */
            tenant?: string | null;
            /** @description Text, which the tokenizer registered for the model turns into tokens. */
            text?: string | null;
            /** @description Token ids, split into chunks; only full chunks count. */
            tokens?: number[] | null;
        } & ((unknown | {
            node: unknown;
        } | {
            nodes: unknown;
        }) & unknown)) & ({
            tokens: unknown;
        } | {
            keys: unknown;
        } | {
            text: unknown;
        } | {
            messages: unknown;
        });
        /** ManagerAnswer */
        ManagerAnswer: {
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
        /** ManagerList */
        ManagerList: {
            items: components["schemas"]["ManagerAnswer"][];
            total: number;
        };
        /** Mark */
        Mark: {
            at: number;
            /** @enum {string} */
            kind: "change" | "alert" | "crash" | "restart" | "node" | "push" | "tier" | "manager" | "database";
            /** @enum {string} */
            level: "info" | "warning" | "error";
            node: string | null;
            ref: string;
            tenant: string | null;
            title: string;
        };
        /** MoveAnswer */
        MoveAnswer: {
            /** @default 0 */
            blocks: number;
            /** @default 0 */
            bytes: number;
            items: components["schemas"]["NodeMove"][];
            tokenizer?: components["schemas"]["TokenizerUsed"] | null;
            total: number;
        };
        /**
         * MovePost
         * @description The blocks that match every given field; at least one field is required. A prefix includes all blocks that were stored after it.
         * @example {
         *       "dry_run": true,
         *       "release": true,
         *       "tenant": "acme",
         *       "tier": "nvme"
         *     }
         */
        MovePost: ({
            /**
             * @description Append the template's generation prompt after the messages.
             * @default false
             */
            add_generation_prompt: boolean;
            /**
             * @description Tokens per chunk, as configured in the engines.
             * @default 256
             */
            chunk_tokens: number;
            /**
             * @description Seconds after which blocks that have not been moved stay where they are.
             * @default 300
             */
            deadline_s: number;
            /**
             * @description Only count the blocks, without moving them.
             * @default false
             */
            dry_run: boolean;
            /** @description Keys of the chunks, 64 hex digits each. */
            keys?: string[] | null;
            /** @description Messages of a chat, rendered with the tokenizer's chat template. */
            messages?: Record<string, never>[] | null;
            /** @description Model, with all of its spaces. */
            model?: string | null;
            /** @description Name of one node. */
            node?: string | null;
            /** @description Names of several nodes. */
            nodes?: string[] | null;
            /**
             * @description Remove each block from memory, or from the tier `source`, once the tier holds it and no engine reads it. Blocks under guaranteed and permanent pins stay.
             * @default false
             */
            release: boolean;
            /**
             * @description Name of the tier to copy blocks from, or `memory`. Must be `memory` if `tier` is.
             * @default memory
             */
            source: string;
            /** @description One space: 32 hex digits, as nodes list it. */
            space?: string | null;
            /** @description Tenant, as shown; `_default` is the empty salt. */
            tenant?: string | null;
            /** @description Text, which the tokenizer registered for the model turns into tokens. */
            text?: string | null;
            /** @description Name of the tier to copy blocks to, or `memory` to load blocks from tiers. */
            tier: string;
            /** @description Token ids, split into chunks; only full chunks count. */
            tokens?: number[] | null;
        } & ((unknown | {
            node: unknown;
        } | {
            nodes: unknown;
        }) & unknown & (unknown | {
            tokens: unknown;
        } | {
            keys: unknown;
        } | {
            text: unknown;
        } | {
            messages: unknown;
        }) & unknown & unknown)) | {
            tenant: unknown;
        } | {
            model: unknown;
        } | {
            space: unknown;
        } | {
            tokens: unknown;
        } | {
            keys: unknown;
        } | {
            text: unknown;
        } | {
            messages: unknown;
        };
        /** MoveProgress */
        MoveProgress: {
            blocks: number;
            bytes: number;
            cancelled: boolean;
            dry_run: boolean;
            ended_at: number | null;
            moved_blocks: number;
            moved_bytes: number;
            number: number;
            present_blocks: number;
            refused: {
                [key: string]: number;
            };
            released_blocks: number;
            released_bytes: number;
            source: string;
            started_at: number;
            tenant: string | null;
            tier: string;
        };
        /** NewJoinToken */
        NewJoinToken: {
            record: components["schemas"]["JoinTokenAnswer"];
            token: string;
        };
        /** NodeAction */
        NodeAction: {
            error: string | null;
            node: string;
            sweep: number | null;
        };
        /** NodeAnswer */
        NodeAnswer: {
            admitted_managers: string[];
            capacity_bytes: number;
            clock_offset_s: number;
            conditions: components["schemas"]["NodeCondition"][];
            control_url: string;
            desired: {
                [key: string]: number;
            };
            draining: boolean;
            engine_socket: string;
            epoch: string;
            events_url: string;
            faults: components["schemas"]["NodeFault"][];
            joined_by: string;
            labels: {
                [key: string]: string;
            };
            name: string;
            observed: {
                [key: string]: components["schemas"]["ObservedState"];
            };
            own_labels: {
                [key: string]: string;
            };
            pid: number;
            public_key: string;
            release: string;
            reported_labels: {
                [key: string]: string;
            };
            seen_at: number;
            /** @enum {string} */
            state: "joining" | "in_sync" | "behind" | "nacked" | "lost";
            stats: components["schemas"]["NodeNumbers"] | null;
        };
        /** NodeCondition */
        NodeCondition: {
            ended_at: number | null;
            message: string;
            since: number;
            /** @enum {string} */
            type: "crash_loop" | "thrashing" | "tenant_at_limit";
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
        /** NodeGateway */
        NodeGateway: {
            chunk_tokens: number;
            clients: components["schemas"]["GatewayClient"][];
            connections: number;
            failures: {
                [key: string]: number;
            };
            gateway: string;
            lookups: number;
            lookups_ended: {
                [key: string]: number;
            };
            memory_short: boolean;
            name_restored: number;
            problem: string;
            requests: {
                [key: string]: number;
            };
            unanswered: number;
            url: string;
            workers: components["schemas"]["GatewayInstance"][];
        };
        /** NodeIpc */
        NodeIpc: {
            at: number;
            /** @default 0 */
            dead_peers: number;
            /** @default 0 */
            message_bytes: number;
            /** @default 0 */
            messages: number;
            node: string;
            /** @default  */
            problem: string;
            /** @default 0 */
            put_bytes: number;
            queues?: components["schemas"]["IpcQueueStats"][];
            /** @default 0 */
            queues_total: number;
            stores?: components["schemas"]["IpcStoreStats"][];
            /** @default 0 */
            stores_total: number;
        };
        /** NodeIpcList */
        NodeIpcList: {
            items: components["schemas"]["NodeIpc"][];
            total: number;
        };
        /** NodeList */
        NodeList: {
            items: components["schemas"]["NodeAnswer"][];
            total: number;
        };
        /** NodeLookup */
        NodeLookup: {
            error: string | null;
            hit_chunks: {
                [key: string]: number;
            };
            hit_tokens: {
                [key: string]: number;
            };
            node: string;
            resident_chunks: {
                [key: string]: number;
            };
            spaces: components["schemas"]["SpaceLookup"][];
        };
        /** NodeMove */
        NodeMove: {
            error: string | null;
            move: components["schemas"]["MoveProgress"] | null;
            node: string;
        };
        /** NodeNumbers */
        NodeNumbers: {
            adopted_blocks: number;
            armed: boolean;
            at: number;
            cold: boolean;
            draining: boolean;
            engines: components["schemas"]["EngineStats"][];
            gateway: components["schemas"]["NodeGateway"] | null;
            gpu_copy_pool_bytes: number;
            gpu_copy_pools: components["schemas"]["GpuCopyPoolStats"][];
            id_journal_bytes: number;
            id_journal_capacity_bytes: number;
            policy: components["schemas"]["PolicyStats"];
            pool: components["schemas"]["PoolStats"];
            refused: {
                [key: string]: number;
            };
            spaces: components["schemas"]["SpaceStats"][];
            spaces_total: number;
            start: components["schemas"]["CacheStart"];
            sweeps: components["schemas"]["SweepStats"][];
            tier_directory_blocks: number;
            tier_directory_unlisted: number;
            tiers: components["schemas"]["TierStats"][];
            totals: components["schemas"]["Totals"];
            uptime_s: number;
        };
        /**
         * NodePatch
         * @description A JSON merge patch of the labels that operators set on a node.
         * @example {
         *       "labels": {
         *         "zone": "b"
         *       }
         *     }
         */
        NodePatch: {
            /**
             * @description Labels that override those that the node reports; null removes an override.
             * @example {
             *       "zone": "b"
             *     }
             */
            labels: {
                [key: string]: string | null;
            };
        };
        /** NodeProgress */
        NodeProgress: {
            conditions?: components["schemas"]["Condition"][];
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
        /** NodeSessionAction */
        NodeSessionAction: {
            blocks: number;
            bytes: number;
            error: string | null;
            node: string;
            refused_blocks: number;
        };
        /** NodeSweep */
        NodeSweep: {
            blocks?: number | null;
            bytes?: number | null;
            error: string | null;
            node: string;
            sweep: number | null;
        };
        /** NodeVerdict */
        NodeVerdict: {
            accepted: boolean;
            error: string | null;
            evictions: components["schemas"]["Eviction"][];
            faults: components["schemas"]["DryRunFault"][];
            node: string;
            selected: boolean;
            type: string;
        };
        /** NodeVerification */
        NodeVerification: {
            error: string | null;
            node: string;
            verification: components["schemas"]["VerifyProgress"] | null;
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
            findings: components["schemas"]["Finding"][];
            nodes: components["schemas"]["NodeAnswer"][];
            pins: components["schemas"]["PinAnswer"][];
            pins_total: number;
            policy: components["schemas"]["PolicyAnswer"] | null;
            pool: components["schemas"]["PoolStats"];
            rates: components["schemas"]["RecentRates"];
            ready: boolean;
            recent: components["schemas"]["LarderEvent"][];
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
            etag: string;
            expired: boolean;
            expires_at: number | null;
            generation: number;
            gpu_copies: number;
            gpu_copies_wanted: number;
            gpu_copy_bytes: number;
            guaranteed: number;
            holds_nothing: boolean;
            key_count: number;
            keys_digest: string;
            managed_by: string;
            model: string;
            name: string;
            nodes: {
                [key: string]: components["schemas"]["PinOnNode"];
            };
            not_loaded: string;
            note: string;
            only_in_tiers: number;
            origin: components["schemas"]["PinOrigin"] | null;
            owner: string;
            refresh_on_hit: boolean;
            resident: number;
            resolved: number;
            selector: {
                [key: string]: string;
            } | null;
            status: components["schemas"]["RecordStatus"];
            /** @enum {string} */
            strength: "soft" | "guaranteed" | "permanent";
            summary: string;
            tenant: string;
            /** @enum {string} */
            tier: "host" | "gpu";
            tiers: {
                [key: string]: components["schemas"]["PinInTier"];
            };
            ttl_s: number | null;
            unlisted_tiers: string[];
            updated_at: number;
        };
        /**
         * PinEntry
         * @description A complete pin record. Exactly one of `tokens`, `keys`, `prefix`, `text` and `messages` is required.
         */
        PinEntry: ({
            /**
             * @description Append the template's generation prompt after the messages.
             * @default false
             */
            add_generation_prompt: boolean;
            /**
             * @description Tokens per chunk, as configured in the engines.
             * @default 256
             */
            chunk_tokens: number;
            /** @description Expiry: Unix seconds, or RFC 3339 with an offset. */
            expires_at?: number | string | null;
            /** @description Keys of the chunks, 64 hex digits each. */
            keys?: string[] | null;
            /**
             * @description Owner of the record in `larder apply`: applying one owner's file never deletes another owner's records. Empty for no owner.
             * @default
             */
            managed_by: string;
            /** @description First messages of a chat, rendered with the tokenizer's chat template. */
            messages?: Record<string, never>[] | null;
            /** @description Model name; the pin applies in all of its spaces. Implied by `prefix`. */
            model?: string | null;
            name: string;
            /**
             * @description Free-form note; at most 1,024 characters.
             * @default
             */
            note: string;
            /** @description Label of a hot prefix that `/prefixes` currently lists. */
            prefix?: string | null;
            /**
             * @description Extend the expiry to `ttl_s` after every hit.
             * @default false
             */
            refresh_on_hit: boolean;
            /** @description Labels that a node must have for the record to apply to it; null for every node. */
            selector?: {
                [key: string]: string;
            } | null;
            /**
             * @description `soft`: evicted last. `guaranteed`: kept until the pin expires, within the budgets. `permanent`: like `guaranteed`, but without an expiry, first to get the budget, and not affected by `invalidate`.
             * @default guaranteed
             * @enum {string}
             */
            strength: "soft" | "guaranteed" | "permanent";
            /** @description Tenant, as shown; defaults to `_default`, the empty salt. Implied by `prefix`. */
            tenant?: string | null;
            /** @description Text of the prefix, which the tokenizer registered for the model turns into tokens. */
            text?: string | null;
            /**
             * @description `host`: in the pools of nodes. `gpu`: also as GPU copies on each GPU whose engines read the model, within `dataplane.gpu_pool_bytes` and the tenant's pin budget.
             * @default host
             * @enum {string}
             */
            tier: "host" | "gpu";
            /** @description Token ids of the prefix, split into chunks; only full chunks are cached and pinned. */
            tokens?: number[] | null;
            /** @description Time to live in seconds from now. */
            ttl_s?: number | null;
        } & (unknown & ({
            prefix: unknown;
        } | {
            model: unknown;
        }) & unknown & (unknown | {
            ttl_s: unknown;
        } | {
            expires_at: unknown;
        }) & unknown)) & ({
            prefix: unknown;
        } | {
            tokens: unknown;
        } | {
            keys: unknown;
        } | {
            text: unknown;
        } | {
            messages: unknown;
        });
        /**
         * PinExtend
         * @description Extend the life of a pin.
         * @example {
         *       "ttl_s": 172800
         *     }
         */
        PinExtend: {
            /** @description Earliest expiry in seconds from now; a later expiry is kept. */
            ttl_s: number;
        };
        /** PinInTier */
        PinInTier: {
            /** @default 0 */
            blocks: number;
            /** @default 0 */
            bytes: number;
            /** @default 0 */
            guaranteed: number;
        };
        /** PinKeys */
        PinKeys: {
            keys: string[];
        };
        /** PinList */
        PinList: {
            items: components["schemas"]["PinAnswer"][];
            next_cursor: string;
            total: number;
        };
        /** PinOnNode */
        PinOnNode: {
            bytes: number;
            gpu_copies: number;
            gpu_copies_wanted: number;
            gpu_copy_bytes: number;
            not_loaded: string;
            only_in_tiers: number;
            resident: number;
            resolved: number;
            tiers: {
                [key: string]: components["schemas"]["PinInTier"];
            };
        };
        /** PinOrigin */
        PinOrigin: {
            chunk_tokens?: number | null;
            prefix?: string | null;
            source: string;
            tokenizer?: components["schemas"]["TokenizerUsed"] | null;
            tokens?: number | null;
        };
        /**
         * PinPatch
         * @description Fields to change; omitted fields keep their values, and null resets a field to its default.
         * @example {
         *       "note": "until the launch",
         *       "strength": "soft",
         *       "tier": "gpu"
         *     }
         */
        PinPatch: {
            /** @description Expiry: Unix seconds, or RFC 3339 with an offset. */
            expires_at?: number | string | null;
            /** @description Owner of the record in `larder apply`: applying one owner's file never deletes another owner's records. Empty for no owner. */
            managed_by?: string | null;
            /** @description Free-form note; at most 1,024 characters. */
            note?: string | null;
            /** @description Extend the expiry to `ttl_s` after every hit. */
            refresh_on_hit?: boolean | null;
            /** @description Labels that a node must have for the record to apply to it; null for every node. */
            selector?: {
                [key: string]: string | null;
            } | null;
            /** @description `soft`: evicted last. `guaranteed`: kept until the pin expires, within the budgets. `permanent`: like `guaranteed`, but without an expiry, first to get the budget, and not affected by `invalidate`. */
            strength?: ("soft" | "guaranteed" | "permanent") | null;
            /** @description `host`: in the pools of nodes. `gpu`: also as GPU copies on each GPU whose engines read the model, within `dataplane.gpu_pool_bytes` and the tenant's pin budget. */
            tier?: ("host" | "gpu") | null;
            /** @description Time to live in seconds from now. */
            ttl_s?: number | null;
        };
        /**
         * PinPut
         * @description A complete pin record. Exactly one of `tokens`, `keys`, `prefix`, `text` and `messages` is required.
         * @example {
         *       "chunk_tokens": 4,
         *       "model": "llama",
         *       "tenant": "acme",
         *       "tokens": [
         *         1,
         *         2,
         *         3,
         *         4
         *       ],
         *       "ttl_s": 3600
         *     }
         */
        PinPut: ({
            /**
             * @description Append the template's generation prompt after the messages.
             * @default false
             */
            add_generation_prompt: boolean;
            /**
             * @description Tokens per chunk, as configured in the engines.
             * @default 256
             */
            chunk_tokens: number;
            /** @description Expiry: Unix seconds, or RFC 3339 with an offset. */
            expires_at?: number | string | null;
            /** @description Keys of the chunks, 64 hex digits each. */
            keys?: string[] | null;
            /**
             * @description Owner of the record in `larder apply`: applying one owner's file never deletes another owner's records. Empty for no owner.
             * @default
             */
            managed_by: string;
            /** @description First messages of a chat, rendered with the tokenizer's chat template. */
            messages?: Record<string, never>[] | null;
            /** @description Model name; the pin applies in all of its spaces. Implied by `prefix`. */
            model?: string | null;
            /**
             * @description Free-form note; at most 1,024 characters.
             * @default
             */
            note: string;
            /** @description Label of a hot prefix that `/prefixes` currently lists. */
            prefix?: string | null;
            /**
             * @description Extend the expiry to `ttl_s` after every hit.
             * @default false
             */
            refresh_on_hit: boolean;
            /** @description Labels that a node must have for the record to apply to it; null for every node. */
            selector?: {
                [key: string]: string;
            } | null;
            /**
             * @description `soft`: evicted last. `guaranteed`: kept until the pin expires, within the budgets. `permanent`: like `guaranteed`, but without an expiry, first to get the budget, and not affected by `invalidate`.
             * @default guaranteed
             * @enum {string}
             */
            strength: "soft" | "guaranteed" | "permanent";
            /** @description Tenant, as shown; defaults to `_default`, the empty salt. Implied by `prefix`. */
            tenant?: string | null;
            /** @description Text of the prefix, which the tokenizer registered for the model turns into tokens. */
            text?: string | null;
            /**
             * @description `host`: in the pools of nodes. `gpu`: also as GPU copies on each GPU whose engines read the model, within `dataplane.gpu_pool_bytes` and the tenant's pin budget.
             * @default host
             * @enum {string}
             */
            tier: "host" | "gpu";
            /** @description Token ids of the prefix, split into chunks; only full chunks are cached and pinned. */
            tokens?: number[] | null;
            /** @description Time to live in seconds from now. */
            ttl_s?: number | null;
        } & (unknown & ({
            prefix: unknown;
        } | {
            model: unknown;
        }) & unknown & (unknown | {
            ttl_s: unknown;
        } | {
            expires_at: unknown;
        }) & unknown)) & ({
            prefix: unknown;
        } | {
            tokens: unknown;
        } | {
            keys: unknown;
        } | {
            text: unknown;
        } | {
            messages: unknown;
        });
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
            /** @enum {string} */
            strength: "soft" | "guaranteed" | "permanent";
            tenant: string;
            /** @enum {string} */
            tier: "host" | "gpu";
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
        /**
         * PolicyEntry
         * @description A complete policy record; omitted fields get their defaults. At least one field of the policy is required.
         */
        PolicyEntry: {
            /** @description Under pressure, admit a block only if its key was seen before; defaults to false. */
            admission?: boolean;
            /**
             * @description The pool is under pressure while victims were idle for less than this many seconds; 1 to 86,400, defaults to 240.
             * @example 60
             */
            admission_idle_s?: number;
            /**
             * @description Order in which blocks are evicted; defaults to `lru`.
             * @enum {string}
             */
            algorithm?: "lru" | "age_class" | "s3fifo" | "arc" | "slru" | "lfu" | "fifo" | "noop";
            /**
             * @description Share of the pool above which blocks are evicted ahead of need; 0.5 to 1, defaults to 1 (evict only when needed).
             * @example 0.9
             */
            high_watermark?: number;
            /**
             * @description Share of the pool at which eviction ahead of need stops; 0.5 to the high watermark, defaults to 1.
             * @example 0.8
             */
            low_watermark?: number;
            /**
             * @description Owner of the record in `larder apply`: applying one owner's file never deletes another owner's records. Empty for no owner.
             * @default
             */
            managed_by: string;
            name: string;
            /**
             * @description Free-form note; at most 1,024 characters.
             * @default
             */
            note: string;
            /**
             * @description Of several policies that match a node, the one with the highest priority is in force; 0 to 1,000, and 0 for `default`.
             * @default 0
             * @example 10
             */
            priority: number;
            /** @description Labels that a node must have for the record to apply to it; null for every node. */
            selector?: {
                [key: string]: string;
            } | null;
        } | unknown | unknown | unknown | unknown | unknown;
        /** PolicyList */
        PolicyList: {
            in_force: {
                [key: string]: components["schemas"]["PolicyStats"];
            };
            items: components["schemas"]["PolicyAnswer"][];
            next_cursor: string;
            total: number;
        };
        /**
         * PolicyPatch
         * @description Fields to change; omitted fields keep their values, and null resets a field to its default.
         * @example {
         *       "algorithm": "arc"
         *     }
         */
        PolicyPatch: {
            /** @description Under pressure, admit a block only if its key was seen before; defaults to false. */
            admission?: boolean | null;
            /** @description The pool is under pressure while victims were idle for less than this many seconds; 1 to 86,400, defaults to 240. */
            admission_idle_s?: number | null;
            /** @description Order in which blocks are evicted; defaults to `lru`. */
            algorithm?: ("lru" | "age_class" | "s3fifo" | "arc" | "slru" | "lfu" | "fifo" | "noop") | null;
            /** @description Share of the pool above which blocks are evicted ahead of need; 0.5 to 1, defaults to 1 (evict only when needed). */
            high_watermark?: number | null;
            /** @description Share of the pool at which eviction ahead of need stops; 0.5 to the high watermark, defaults to 1. */
            low_watermark?: number | null;
            /** @description Owner of the record in `larder apply`: applying one owner's file never deletes another owner's records. Empty for no owner. */
            managed_by?: string | null;
            /** @description Free-form note; at most 1,024 characters. */
            note?: string | null;
            /** @description Of several policies that match a node, the one with the highest priority is in force; 0 to 1,000, and 0 for `default`. */
            priority?: number | null;
            /** @description Labels that a node must have for the record to apply to it; null for every node. */
            selector?: {
                [key: string]: string | null;
            } | null;
        };
        /**
         * PolicyPut
         * @description A complete policy record; omitted fields get their defaults. At least one field of the policy is required.
         * @example {
         *       "admission": true,
         *       "algorithm": "s3fifo",
         *       "priority": 10,
         *       "selector": {
         *         "zone": "a"
         *       }
         *     }
         */
        PolicyPut: {
            /** @description Under pressure, admit a block only if its key was seen before; defaults to false. */
            admission?: boolean;
            /**
             * @description The pool is under pressure while victims were idle for less than this many seconds; 1 to 86,400, defaults to 240.
             * @example 60
             */
            admission_idle_s?: number;
            /**
             * @description Order in which blocks are evicted; defaults to `lru`.
             * @enum {string}
             */
            algorithm?: "lru" | "age_class" | "s3fifo" | "arc" | "slru" | "lfu" | "fifo" | "noop";
            /**
             * @description Share of the pool above which blocks are evicted ahead of need; 0.5 to 1, defaults to 1 (evict only when needed).
             * @example 0.9
             */
            high_watermark?: number;
            /**
             * @description Share of the pool at which eviction ahead of need stops; 0.5 to the high watermark, defaults to 1.
             * @example 0.8
             */
            low_watermark?: number;
            /**
             * @description Owner of the record in `larder apply`: applying one owner's file never deletes another owner's records. Empty for no owner.
             * @default
             */
            managed_by: string;
            /**
             * @description Free-form note; at most 1,024 characters.
             * @default
             */
            note: string;
            /**
             * @description Of several policies that match a node, the one with the highest priority is in force; 0 to 1,000, and 0 for `default`.
             * @default 0
             * @example 10
             */
            priority: number;
            /** @description Labels that a node must have for the record to apply to it; null for every node. */
            selector?: {
                [key: string]: string;
            } | null;
        } | unknown | unknown | unknown | unknown | unknown;
        /** PolicyRecord */
        PolicyRecord: {
            admission: boolean;
            admission_idle_s: number;
            /** @enum {string} */
            algorithm: "lru" | "age_class" | "s3fifo" | "arc" | "slru" | "lfu" | "fifo" | "noop";
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
            forgotten_sessions: number;
            /** @default 0 */
            free_slot_bytes: number;
            /** @default 0 */
            hinted_bytes: number;
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
            sessions: number;
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
            failed_nodes: components["schemas"]["NodeError"][];
            items: components["schemas"]["PrefixAnswer"][];
            total: number;
        };
        /** PrefixLocation */
        PrefixLocation: {
            control_url: string;
            engine_socket: string;
            hit_chunks: {
                [key: string]: number;
            };
            hit_tokens: {
                [key: string]: number;
            };
            node: string;
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
            type: "quotas" | "pins" | "policies" | "tiers";
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
            tiers: {
                [key: string]: components["schemas"]["TierQuota"];
            };
            updated_at: number;
            used_bytes: number;
            weight: number;
            would_refuse_blocks: number;
        };
        /**
         * QuotaEntry
         * @description A complete quota record; omitted fields get their defaults. At least one field of the share is required. Sizes are bytes, or text such as `4GiB`.
         */
        QuotaEntry: {
            /**
             * @description Bytes that no other tenant's store may evict; at most the limit, defaults to 0.
             * @example 256MiB
             */
            floor_bytes?: number | string;
            /**
             * @description Most bytes that the tenant may hold; null for no limit.
             * @example 4GiB
             */
            limit_bytes?: number | string | null;
            /**
             * @description Owner of the record in `larder apply`: applying one owner's file never deletes another owner's records. Empty for no owner.
             * @default
             */
            managed_by: string;
            /**
             * @description `enforce` (the default), or `observe`: nothing is enforced, and stores that would be refused are counted.
             * @enum {string}
             */
            mode?: "enforce" | "observe";
            /**
             * @description Free-form note; at most 1,024 characters.
             * @default
             */
            note: string;
            /**
             * @description At the limit: evict the tenant's own blocks (the default), or refuse the store.
             * @enum {string}
             */
            on_exceed?: "evict_self" | "reject";
            /**
             * @description Bytes that guaranteed pins may hold: at most the floor, if there is one, and at most the limit; null for no budget other than the pool's.
             * @example 128MiB
             */
            pin_budget_bytes?: number | string | null;
            /** @description Labels that a node must have for the record to apply to it; null for every node. */
            selector?: {
                [key: string]: string;
            } | null;
            /**
             * @description Bytes per second that the tenant may store, at least 1; null for no limit.
             * @example 1MiB
             */
            store_rate_bytes?: number | string | null;
            tenant: string;
            /**
             * @description Floors and limits in tiers behind memory, by the name of the tier, at most 8; defaults to none. `weight`, `on_exceed` and `mode` apply there, too.
             * @example {
             *       "disk": {
             *         "floor_bytes": "10GiB",
             *         "limit_bytes": "100GiB"
             *       }
             *     }
             */
            tiers?: {
                [key: string]: components["schemas"]["TierQuotaPut"];
            };
            /**
             * @description Weight against other tenants in the use of borrowed bytes: 0.01 to 1,000, defaults to 1.
             * @example 2
             */
            weight?: number;
        } | unknown | unknown | unknown | unknown | unknown | unknown | unknown | unknown;
        /** QuotaList */
        QuotaList: {
            items: components["schemas"]["QuotaAnswer"][];
            next_cursor: string;
            total: number;
        };
        /**
         * QuotaPatch
         * @description Fields to change; omitted fields keep their values, and null resets a field to its default.
         * @example {
         *       "limit_bytes": "8GiB",
         *       "note": null
         *     }
         */
        QuotaPatch: {
            /** @description Bytes that no other tenant's store may evict; at most the limit, defaults to 0. */
            floor_bytes?: number | string | null;
            /**
             * @description Most bytes that the tenant may hold; null for no limit.
             * @example 4GiB
             */
            limit_bytes?: number | string | null;
            /** @description Owner of the record in `larder apply`: applying one owner's file never deletes another owner's records. Empty for no owner. */
            managed_by?: string | null;
            /** @description `enforce` (the default), or `observe`: nothing is enforced, and stores that would be refused are counted. */
            mode?: ("enforce" | "observe") | null;
            /** @description Free-form note; at most 1,024 characters. */
            note?: string | null;
            /** @description At the limit: evict the tenant's own blocks (the default), or refuse the store. */
            on_exceed?: ("evict_self" | "reject") | null;
            /**
             * @description Bytes that guaranteed pins may hold: at most the floor, if there is one, and at most the limit; null for no budget other than the pool's.
             * @example 128MiB
             */
            pin_budget_bytes?: number | string | null;
            /** @description Labels that a node must have for the record to apply to it; null for every node. */
            selector?: {
                [key: string]: string | null;
            } | null;
            /**
             * @description Bytes per second that the tenant may store, at least 1; null for no limit.
             * @example 1MiB
             */
            store_rate_bytes?: number | string | null;
            /** @description Floors and limits in tiers behind memory, by the name of the tier, at most 8; defaults to none. `weight`, `on_exceed` and `mode` apply there, too. */
            tiers?: {
                [key: string]: components["schemas"]["TierQuotaPatch"] | null;
            } | null;
            /** @description Weight against other tenants in the use of borrowed bytes: 0.01 to 1,000, defaults to 1. */
            weight?: number | null;
        };
        /**
         * QuotaPut
         * @description A complete quota record; omitted fields get their defaults. At least one field of the share is required. Sizes are bytes, or text such as `4GiB`.
         * @example {
         *       "floor_bytes": "256MiB",
         *       "limit_bytes": "4GiB",
         *       "note": "trial",
         *       "weight": 2
         *     }
         */
        QuotaPut: {
            /**
             * @description Bytes that no other tenant's store may evict; at most the limit, defaults to 0.
             * @example 256MiB
             */
            floor_bytes?: number | string;
            /**
             * @description Most bytes that the tenant may hold; null for no limit.
             * @example 4GiB
             */
            limit_bytes?: number | string | null;
            /**
             * @description Owner of the record in `larder apply`: applying one owner's file never deletes another owner's records. Empty for no owner.
             * @default
             */
            managed_by: string;
            /**
             * @description `enforce` (the default), or `observe`: nothing is enforced, and stores that would be refused are counted.
             * @enum {string}
             */
            mode?: "enforce" | "observe";
            /**
             * @description Free-form note; at most 1,024 characters.
             * @default
             */
            note: string;
            /**
             * @description At the limit: evict the tenant's own blocks (the default), or refuse the store.
             * @enum {string}
             */
            on_exceed?: "evict_self" | "reject";
            /**
             * @description Bytes that guaranteed pins may hold: at most the floor, if there is one, and at most the limit; null for no budget other than the pool's.
             * @example 128MiB
             */
            pin_budget_bytes?: number | string | null;
            /** @description Labels that a node must have for the record to apply to it; null for every node. */
            selector?: {
                [key: string]: string;
            } | null;
            /**
             * @description Bytes per second that the tenant may store, at least 1; null for no limit.
             * @example 1MiB
             */
            store_rate_bytes?: number | string | null;
            /**
             * @description Floors and limits in tiers behind memory, by the name of the tier, at most 8; defaults to none. `weight`, `on_exceed` and `mode` apply there, too.
             * @example {
             *       "disk": {
             *         "floor_bytes": "10GiB",
             *         "limit_bytes": "100GiB"
             *       }
             *     }
             */
            tiers?: {
                [key: string]: components["schemas"]["TierQuotaPut"];
            };
            /**
             * @description Weight against other tenants in the use of borrowed bytes: 0.01 to 1,000, defaults to 1.
             * @example 2
             */
            weight?: number;
        } | unknown | unknown | unknown | unknown | unknown | unknown | unknown | unknown;
        /** QuotaRecord */
        QuotaRecord: {
            floor_bytes: number;
            generation: number;
            limit_bytes: number | null;
            managed_by: string;
            /** @enum {string} */
            mode: "enforce" | "observe";
            note: string;
            /** @enum {string} */
            on_exceed: "evict_self" | "reject";
            pin_budget_bytes: number | null;
            selector: {
                [key: string]: string;
            } | null;
            store_rate_bytes: number | null;
            tenant: string;
            tiers: {
                [key: string]: components["schemas"]["TierQuota"];
            };
            weight: number;
        };
        /** RateAnswer */
        RateAnswer: {
            created_at: number;
            etag: string;
            model: string;
            name: string;
            note: string;
            prefill_tokens_per_s: number;
            space: string;
            updated_at: number;
        };
        /** RateList */
        RateList: {
            items: components["schemas"]["RateAnswer"][];
            next_cursor: string;
            total: number;
        };
        /**
         * RatePatch
         * @description Fields to change; omitted fields keep their values, and null resets a field to its default.
         * @example {
         *       "prefill_tokens_per_s": 15000
         *     }
         */
        RatePatch: {
            /** @description Required: model name with which engines attach. */
            model?: string;
            /** @description Free-form note; at most 1,024 characters. */
            note?: string | null;
            /** @description Required: prefill tokens per second of a whole engine, with all its ranks: above 0, at most 1,000,000,000. */
            prefill_tokens_per_s?: number;
            /** @description Identity of the only space for which the rate holds (32 hex digits); empty for all spaces of the model. */
            space?: string | null;
        };
        /**
         * RatePut
         * @description A prefill rate: tokens per second that an engine computes, as measured by the operator. `model` and `prefill_tokens_per_s` have no default.
         * @example {
         *       "model": "llama",
         *       "note": "measured",
         *       "prefill_tokens_per_s": 12000
         *     }
         */
        RatePut: {
            /** @description Required: model name with which engines attach. */
            model: string;
            /**
             * @description Free-form note; at most 1,024 characters.
             * @default
             */
            note: string;
            /** @description Required: prefill tokens per second of a whole engine, with all its ranks: above 0, at most 1,000,000,000. */
            prefill_tokens_per_s: number;
            /**
             * @description Identity of the only space for which the rate holds (32 hex digits); empty for all spaces of the model.
             * @default
             */
            space: string;
        };
        /** Readiness */
        Readiness: {
            /** @default  */
            database: string;
            /** @constant */
            status: "ready";
        };
        /** RecentRates */
        RecentRates: {
            evicted_blocks_per_s: number;
            hit_ratio: number | null;
            hit_ratio_total: number | null;
            read_bytes_per_s: number;
            stored_bytes_per_s: number;
        };
        /** RecordChange */
        RecordChange: {
            /** @enum {string} */
            action: "create" | "update" | "delete" | "unchanged" | "ended";
            fields: {
                [key: string]: components["schemas"]["FieldChange"];
            };
            managed_by: string;
            name: string;
            /** @enum {string} */
            type: "quotas" | "pins" | "policies" | "tiers";
        };
        /** RecordStatus */
        RecordStatus: {
            /** @constant */
            accepted: true;
            applied: boolean;
            conditions?: components["schemas"]["Condition"][];
            nodes: {
                [key: string]: components["schemas"]["NodeProgress"];
            };
        };
        /** Records[PinRecord] */
        "Records_app.schemas.records.pins.PinRecord_": {
            digest: string;
            generation: number;
            items: components["schemas"]["PinRecord"][];
        };
        /** Records[PolicyRecord] */
        "Records_app.schemas.records.policies.PolicyRecord_": {
            digest: string;
            generation: number;
            items: components["schemas"]["PolicyRecord"][];
        };
        /** Records[QuotaRecord] */
        "Records_app.schemas.records.quotas.QuotaRecord_": {
            digest: string;
            generation: number;
            items: components["schemas"]["QuotaRecord"][];
        };
        /** Records[TierRecord] */
        "Records_app.schemas.records.tiers.TierRecord_": {
            digest: string;
            generation: number;
            items: components["schemas"]["TierRecord"][];
        };
        /** RequestAnswer */
        RequestAnswer: {
            at: number;
            cause: string;
            cause_at: number | null;
            engine: string;
            engine_tokens: number;
            loaded_tokens: {
                [key: string]: number;
            };
            meaning: string;
            missed_tokens: number;
            model: string;
            node: string;
            prompt_tokens: number;
            reason: string;
            request: string;
            tenant: string;
        };
        /** RequestList */
        RequestList: {
            failed_nodes: components["schemas"]["NodeError"][];
            items: components["schemas"]["RequestAnswer"][];
            total: number;
        };
        /** ResizeAnswer */
        ResizeAnswer: {
            capacity_bytes: number;
            max_blocks: number | null;
            node: string;
        };
        /**
         * ResizePost
         * @description Requested size of the pool.
         * @example {
         *       "pool_bytes": "8GiB"
         *     }
         */
        ResizePost: {
            /**
             * @description Bytes, or text such as `4GiB`; pools cannot shrink.
             * @example 4GiB
             */
            pool_bytes: number | string;
        };
        /** RestartAnswer */
        RestartAnswer: {
            blocks: number;
            bytes: number;
            data_plane_pid: number | null;
            instance: string;
            kept: boolean;
            reason: string;
            release: string;
            seconds: number | null;
            /** @default true */
            starts_data_plane: boolean;
        };
        /**
         * RestartPost
         * @description Options of a restart.
         * @example {
         *       "dry_run": true,
         *       "fresh": false
         *     }
         */
        RestartPost: {
            /**
             * @description Only check whether the new processes would start and keep the cache.
             * @default false
             */
            dry_run: boolean;
            /**
             * @description Release the cache: the new data plane process starts with an empty one.
             * @default false
             */
            fresh: boolean;
        };
        /** SeriesAnswer */
        SeriesAnswer: {
            at: number[];
            marks: components["schemas"]["Mark"][];
            /** @default  */
            problem: string;
            series: components["schemas"]["SeriesValues"][];
            step_s: number;
        };
        /** SeriesDescription */
        SeriesDescription: {
            meaning: string;
            name: string;
            scopes: ("fleet" | "node" | "tenant")[];
            unit: string;
        };
        /** SeriesNames */
        SeriesNames: {
            items: components["schemas"]["SeriesDescription"][];
            total: number;
        };
        /** SeriesValues */
        SeriesValues: {
            name: string;
            node: string | null;
            tenant: string | null;
            unit: string;
            values: (number | null)[];
        };
        /** SessionActionAnswer */
        SessionActionAnswer: {
            blocks: number;
            bytes: number;
            items: components["schemas"]["NodeSessionAction"][];
            refused_blocks: number;
            session: string;
            tenant: string;
            total: number;
        };
        /** SessionAnswer */
        SessionAnswer: {
            actor: string;
            csrf_token: string;
            expires_at: number | null;
            /** @enum {string} */
            role: "alerts" | "viewer" | "operator" | "admin";
            session: boolean;
            source: string;
            tenants: string[] | null;
            token_id: string;
        };
        /**
         * SessionPost
         * @example {
         *       "token": "larder_ID_SECRET"
         *     }
         */
        SessionPost: {
            /** @description A token, `larder_…`. */
            token: string;
        };
        /** SettingsTier */
        SettingsTier: {
            blocks: number;
            logical_bytes: number;
            name: string;
            stats: {
                [key: string]: components["schemas"]["TierStats"];
            };
            stored_bytes: number;
            unspilled_bytes: number;
        };
        /** SnapshotAnswer */
        SnapshotAnswer: {
            index: number;
            nodes: components["schemas"]["NodeRecord"][];
            pins: components["schemas"]["Records_app.schemas.records.pins.PinRecord_"];
            policies: components["schemas"]["Records_app.schemas.records.policies.PolicyRecord_"];
            quotas: components["schemas"]["Records_app.schemas.records.quotas.QuotaRecord_"];
            tiers: components["schemas"]["Records_app.schemas.records.tiers.TierRecord_"];
        };
        /** SpaceLookup */
        SpaceLookup: {
            dtype: string;
            hits: {
                [key: string]: number;
            };
            kv_group: number;
            layout: string;
            pipeline_stage: number;
            rank: number;
            resident: {
                [key: string]: number;
            };
            revision: string;
            space: string;
            world_size: number;
        };
        /** SpaceStats */
        SpaceStats: {
            block_bytes: number;
            blocks: number;
            bytes: number;
            dtype: string;
            /** @default  */
            gateway: string;
            model: string;
            padding_bytes: number;
            rank: number;
            revision: string;
            segments: number;
            space: string;
            world_size: number;
        };
        /**
         * SweepPost
         * @description The blocks that match every given field; at least one field is required. A prefix includes all blocks that were stored after it.
         * @example {
         *       "model": "llama",
         *       "tenant": "acme"
         *     }
         */
        SweepPost: ({
            /**
             * @description Append the template's generation prompt after the messages.
             * @default false
             */
            add_generation_prompt: boolean;
            /**
             * @description Tokens per chunk, as configured in the engines.
             * @default 256
             */
            chunk_tokens: number;
            /**
             * @description Only count the blocks, without changing them.
             * @default false
             */
            dry_run: boolean;
            /** @description Keys of the chunks, 64 hex digits each. */
            keys?: string[] | null;
            /** @description Messages of a chat, rendered with the tokenizer's chat template. */
            messages?: Record<string, never>[] | null;
            /** @description Model, with all of its spaces. */
            model?: string | null;
            /** @description Name of one node. */
            node?: string | null;
            /** @description Names of several nodes. */
            nodes?: string[] | null;
            /** @description One space: 32 hex digits, as nodes list it. */
            space?: string | null;
            /** @description Tenant, as shown; `_default` is the empty salt. */
            tenant?: string | null;
            /** @description Text, which the tokenizer registered for the model turns into tokens. */
            text?: string | null;
            /** @description Token ids, split into chunks; only full chunks count. */
            tokens?: number[] | null;
        } & ((unknown | {
            node: unknown;
        } | {
            nodes: unknown;
        }) & unknown & (unknown | {
            tokens: unknown;
        } | {
            keys: unknown;
        } | {
            text: unknown;
        } | {
            messages: unknown;
        }) & unknown)) | {
            tenant: unknown;
        } | {
            model: unknown;
        } | {
            space: unknown;
        } | {
            tokens: unknown;
        } | {
            keys: unknown;
        } | {
            text: unknown;
        } | {
            messages: unknown;
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
            limit_share: number | null;
            lookup_bytes: number;
            managed: boolean;
            missed_tokens: {
                [key: string]: number;
            };
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
            tiers: {
                [key: string]: components["schemas"]["TierQuota"];
            };
            weight: number;
            would_refuse_blocks: number;
        };
        /** TenantList */
        TenantList: {
            items: components["schemas"]["TenantAnswer"][];
            next_cursor: string;
            total: number;
        };
        /** TierAnswer */
        TierAnswer: {
            blocks: number;
            budget_bytes: number;
            /** @enum {string} */
            compress: "none" | "zstd" | "fp8";
            created_at: number;
            etag: string;
            faults: {
                [key: string]: components["schemas"]["TierRefusal"][];
            };
            generation: number;
            load_deadline_s: number;
            logical_bytes: number;
            managed_by: string;
            max_bytes_in_flight: number;
            name: string;
            note: string;
            order: number;
            parameters: {
                [key: string]: unknown;
            };
            selector: {
                [key: string]: string;
            } | null;
            /** @enum {string} */
            spill: "commit" | "second_touch" | "evict" | "cascade" | "drain" | "off";
            stats: {
                [key: string]: components["schemas"]["TierStats"];
            };
            status: components["schemas"]["RecordStatus"];
            stored_bytes: number;
            type: string;
            unspilled_bytes: number;
            updated_at: number;
        };
        /** TierDeletion */
        TierDeletion: {
            blocks: number;
            generation: number;
            message: string;
            name: string;
            nodes: string[];
            stored_bytes: number;
        };
        /**
         * TierEntry
         * @description A complete tier record; omitted fields get their defaults, and `type` and `budget_bytes` have none. Sizes are bytes, or text such as `4GiB`. Secrets are references: `env:NAME`, or `file:/path` of a file on each node.
         */
        TierEntry: {
            /**
             * @description Required: most bytes that each node keeps in the tier. A tier of the type `disk` needs at least one segment file, 1 GiB if `parameters` does not set `segment_bytes`.
             * @example 4GiB
             */
            budget_bytes: number | string;
            /**
             * @description How blocks are encoded when they are copied to the tier: as they are in memory (`none`), losslessly (`zstd`), or in half the bytes with an error (`fp8`). Only the type `s3` supports `zstd` and `fp8`. Blocks that the tier already holds stay as they are.
             * @default none
             * @example zstd
             * @enum {string}
             */
            compress: "none" | "zstd" | "fp8";
            /**
             * @description Seconds after which a load that has not begun is cancelled: at most 300.
             * @default 5
             * @example 2
             */
            load_deadline_s: number;
            /**
             * @description Owner of the record in `larder apply`: applying one owner's file never deletes another owner's records. Empty for no owner.
             * @default
             */
            managed_by: string;
            /**
             * @description Most bytes that are copied to the tier, and that are loaded from it, at the same time: 1 MiB to 64 GiB.
             * @default 67108864
             * @example 128MiB
             */
            max_bytes_in_flight: number | string;
            name: string;
            /**
             * @description Free-form note; at most 1,024 characters.
             * @default
             */
            note: string;
            /**
             * @description A block that several tiers hold is loaded from the one with the lowest number: 0 to 1,000.
             * @default 0
             * @example 10
             */
            order: number;
            /**
             * @description Parameters of the type, such as the directories of a disk tier.
             * @example {
             *       "region": "eu-central-1",
             *       "url": "s3://bucket/larder"
             *     }
             */
            parameters?: Record<string, never>;
            /** @description Labels that a node must have for the record to apply to it; null for every node. */
            selector?: {
                [key: string]: string;
            } | null;
            /**
             * @description Which blocks are copied to the tier: all that are stored (`commit`), those that are used again (`second_touch`), those that memory evicts soon (`evict`), those that a tier with a lower `order` evicts soon and no other tier holds (`cascade`), or none (`off`). With `drain`, it gets none either, the blocks that it alone holds are copied to another tier, and the record cannot be deleted before that is done.
             * @default commit
             * @enum {string}
             */
            spill: "commit" | "second_touch" | "evict" | "cascade" | "drain" | "off";
            /**
             * @description Required: `disk`, `mooncake`, `redis` or `s3`, or a type that another package adds.
             * @example s3
             */
            type: string;
        };
        /** TierList */
        TierList: {
            from_settings: components["schemas"]["SettingsTier"][];
            items: components["schemas"]["TierAnswer"][];
            next_cursor: string;
            total: number;
        };
        /**
         * TierPatch
         * @description Fields to change; omitted fields keep their values, and null resets a field to its default.
         * @example {
         *       "budget_bytes": "4TiB"
         *     }
         */
        TierPatch: {
            /**
             * @description Required: most bytes that each node keeps in the tier. A tier of the type `disk` needs at least one segment file, 1 GiB if `parameters` does not set `segment_bytes`.
             * @example 4GiB
             */
            budget_bytes?: number | string;
            /** @description How blocks are encoded when they are copied to the tier: as they are in memory (`none`), losslessly (`zstd`), or in half the bytes with an error (`fp8`). Only the type `s3` supports `zstd` and `fp8`. Blocks that the tier already holds stay as they are. */
            compress?: ("none" | "zstd" | "fp8") | null;
            /** @description Seconds after which a load that has not begun is cancelled: at most 300. */
            load_deadline_s?: number | null;
            /** @description Owner of the record in `larder apply`: applying one owner's file never deletes another owner's records. Empty for no owner. */
            managed_by?: string | null;
            /** @description Most bytes that are copied to the tier, and that are loaded from it, at the same time: 1 MiB to 64 GiB. */
            max_bytes_in_flight?: number | string | null;
            /** @description Free-form note; at most 1,024 characters. */
            note?: string | null;
            /** @description A block that several tiers hold is loaded from the one with the lowest number: 0 to 1,000. */
            order?: number | null;
            /** @description Parameters of the type, such as the directories of a disk tier. */
            parameters?: Record<string, never> | null;
            /** @description Labels that a node must have for the record to apply to it; null for every node. */
            selector?: {
                [key: string]: string | null;
            } | null;
            /** @description Which blocks are copied to the tier: all that are stored (`commit`), those that are used again (`second_touch`), those that memory evicts soon (`evict`), those that a tier with a lower `order` evicts soon and no other tier holds (`cascade`), or none (`off`). With `drain`, it gets none either, the blocks that it alone holds are copied to another tier, and the record cannot be deleted before that is done. */
            spill?: ("commit" | "second_touch" | "evict" | "cascade" | "drain" | "off") | null;
            /**
             * @description Required: `disk`, `mooncake`, `redis` or `s3`, or a type that another package adds.
             * @example s3
             */
            type?: string;
        };
        /**
         * TierPut
         * @description A complete tier record; omitted fields get their defaults, and `type` and `budget_bytes` have none. Sizes are bytes, or text such as `4GiB`. Secrets are references: `env:NAME`, or `file:/path` of a file on each node.
         * @example {
         *       "budget_bytes": "2TiB",
         *       "parameters": {
         *         "directories": [
         *           "/mnt/nvme0/larder"
         *         ]
         *       },
         *       "selector": {
         *         "rack": "7"
         *       },
         *       "type": "disk"
         *     }
         */
        TierPut: {
            /**
             * @description Required: most bytes that each node keeps in the tier. A tier of the type `disk` needs at least one segment file, 1 GiB if `parameters` does not set `segment_bytes`.
             * @example 4GiB
             */
            budget_bytes: number | string;
            /**
             * @description How blocks are encoded when they are copied to the tier: as they are in memory (`none`), losslessly (`zstd`), or in half the bytes with an error (`fp8`). Only the type `s3` supports `zstd` and `fp8`. Blocks that the tier already holds stay as they are.
             * @default none
             * @example zstd
             * @enum {string}
             */
            compress: "none" | "zstd" | "fp8";
            /**
             * @description Seconds after which a load that has not begun is cancelled: at most 300.
             * @default 5
             * @example 2
             */
            load_deadline_s: number;
            /**
             * @description Owner of the record in `larder apply`: applying one owner's file never deletes another owner's records. Empty for no owner.
             * @default
             */
            managed_by: string;
            /**
             * @description Most bytes that are copied to the tier, and that are loaded from it, at the same time: 1 MiB to 64 GiB.
             * @default 67108864
             * @example 128MiB
             */
            max_bytes_in_flight: number | string;
            /**
             * @description Free-form note; at most 1,024 characters.
             * @default
             */
            note: string;
            /**
             * @description A block that several tiers hold is loaded from the one with the lowest number: 0 to 1,000.
             * @default 0
             * @example 10
             */
            order: number;
            /**
             * @description Parameters of the type, such as the directories of a disk tier.
             * @example {
             *       "region": "eu-central-1",
             *       "url": "s3://bucket/larder"
             *     }
             */
            parameters?: Record<string, never>;
            /** @description Labels that a node must have for the record to apply to it; null for every node. */
            selector?: {
                [key: string]: string;
            } | null;
            /**
             * @description Which blocks are copied to the tier: all that are stored (`commit`), those that are used again (`second_touch`), those that memory evicts soon (`evict`), those that a tier with a lower `order` evicts soon and no other tier holds (`cascade`), or none (`off`). With `drain`, it gets none either, the blocks that it alone holds are copied to another tier, and the record cannot be deleted before that is done.
             * @default commit
             * @enum {string}
             */
            spill: "commit" | "second_touch" | "evict" | "cascade" | "drain" | "off";
            /**
             * @description Required: `disk`, `mooncake`, `redis` or `s3`, or a type that another package adds.
             * @example s3
             */
            type: string;
        };
        /** TierQuota */
        TierQuota: {
            /** @default 0 */
            floor_bytes: number;
            limit_bytes?: number | null;
        };
        /**
         * TierQuotaPatch
         * @description Fields to change; omitted fields keep their values, and null resets a field to its default.
         */
        TierQuotaPatch: {
            /** @description Bytes of the tier that no other tenant's blocks may take; at most the limit. */
            floor_bytes?: number | string | null;
            /** @description Most bytes that the tenant may hold in the tier of each node; null for no limit. */
            limit_bytes?: number | string | null;
        };
        /**
         * TierQuotaPut
         * @description Share of a tenant in one tier behind memory.
         */
        TierQuotaPut: {
            /**
             * @description Bytes of the tier that no other tenant's blocks may take; at most the limit.
             * @default 0
             */
            floor_bytes: number | string;
            /** @description Most bytes that the tenant may hold in the tier of each node; null for no limit. */
            limit_bytes?: number | string | null;
        };
        /** TierRecord */
        TierRecord: {
            budget_bytes: number;
            /** @enum {string} */
            compress: "none" | "zstd" | "fp8";
            generation: number;
            load_deadline_s: number;
            managed_by: string;
            max_bytes_in_flight: number;
            name: string;
            note: string;
            order: number;
            parameters: {
                [key: string]: unknown;
            };
            selector: {
                [key: string]: string;
            } | null;
            /** @enum {string} */
            spill: "commit" | "second_touch" | "evict" | "cascade" | "drain" | "off";
            type: string;
        };
        /** TierRefusal */
        TierRefusal: {
            code: string;
            message: string;
            path: string;
        };
        /** TierStats */
        TierStats: {
            /** @default 0 */
            blocks: number;
            budget_bytes: number;
            /** @default 0 */
            cascaded_blocks: number;
            draining_blocks?: number | null;
            encodings?: {
                [key: string]: number;
            };
            /** @default 0 */
            evicted_blocks: number;
            /** @default  */
            first_foreign: string;
            /** @default 0 */
            foreign_objects: number;
            /** @default true */
            from_settings: boolean;
            listed_blocks?: number | null;
            /** @default  */
            listing_fault: string;
            /** @default 0 */
            load_bytes_per_s: number;
            /** @default 0 */
            loaded_blocks: number;
            /** @default 0 */
            loaded_bytes: number;
            /** @default 0 */
            loading_bytes: number;
            /** @default 0 */
            logical_bytes: number;
            lost?: {
                [key: string]: number;
            };
            name: string;
            not_compressed?: {
                [key: string]: number;
            };
            /** @default 0 */
            out_of_service: number;
            /** @default  */
            reason: string;
            refused?: {
                [key: string]: number;
            };
            serves: boolean;
            /** @default false */
            shared: boolean;
            /** @default 0 */
            spilled_blocks: number;
            /** @default 0 */
            spilled_bytes: number;
            /** @default 0 */
            spilling_bytes: number;
            /**
             * @default in service
             * @enum {string}
             */
            state: "opening" | "in service" | "out of service" | "not opened" | "closing";
            /** @default 0 */
            stored_bytes: number;
            tenants?: components["schemas"]["TierTenantStats"][];
            type: string;
            /** @default 0 */
            waiting_blocks: number;
            /** @default 0 */
            waiting_bytes: number;
        };
        /** TierTenantStats */
        TierTenantStats: {
            blocks: number;
            bytes: number;
            /** @default 0 */
            effective_floor_bytes: number;
            /** @default 0 */
            floor_bytes: number;
            limit_bytes?: number | null;
            tenant: string;
        };
        /** TierUsageCounts */
        TierUsageCounts: {
            byte_hours: number;
            served_bytes: number;
            served_tokens: number;
        };
        /** TokenAnswer */
        TokenAnswer: {
            created_at: number;
            created_by: string;
            expired: boolean;
            expires_at: number | null;
            id: string;
            last_used_at: number | null;
            last_used_from: string;
            name: string;
            /** @enum {string} */
            role: "alerts" | "viewer" | "operator" | "admin";
            tenants: string[] | null;
        };
        /** TokenList */
        TokenList: {
            items: components["schemas"]["TokenAnswer"][];
            next_cursor: string;
            total: number;
        };
        /** TokenMade */
        TokenMade: {
            created_at: number;
            created_by: string;
            expired: boolean;
            expires_at: number | null;
            id: string;
            last_used_at: number | null;
            last_used_from: string;
            name: string;
            /** @enum {string} */
            role: "alerts" | "viewer" | "operator" | "admin";
            tenants: string[] | null;
            token: string;
        };
        /**
         * TokenPatch
         * @description Fields of a token to change; omitted fields keep their values.
         * @example {
         *       "ttl_s": 7776000
         *     }
         */
        TokenPatch: {
            /** @description Expiry: Unix seconds, or RFC 3339 with an offset; null for no expiry. */
            expires_at?: number | string | null;
            name?: string;
            /** @description Time to live in seconds from now. */
            ttl_s?: number;
        } & unknown;
        /**
         * TokenPost
         * @description A token to create.
         * @example {
         *       "name": "ci",
         *       "role": "operator",
         *       "tenants": [
         *         "acme"
         *       ],
         *       "ttl_s": 7776000
         *     }
         */
        TokenPost: {
            /** @description Expiry: Unix seconds, or RFC 3339 with an offset; null for no expiry. */
            expires_at?: number | string | null;
            /** @description Name shown in lists and in the audit log: 1 to 128 characters of A-Z a-z 0-9 . _ - */
            name: string;
            /**
             * @description `viewer` may read; `operator` may also change quotas, pins, policies, tiers and nodes; `admin` may also manage tokens and ceilings and read the audit log. `alerts` may only post alerts.
             * @default viewer
             * @enum {string}
             */
            role: "alerts" | "viewer" | "operator" | "admin";
            /** @description Tenants, as shown, to which the token is limited (`_default` is the empty salt); null for all tenants. */
            tenants?: string[] | null;
            /** @description Time to live in seconds from now. */
            ttl_s?: number | null;
        } & ((unknown | {
            ttl_s: unknown;
        } | {
            expires_at: unknown;
        }) & unknown);
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
        /**
         * TokenizerPatch
         * @description Fields to change; omitted fields keep their values, and null resets a field to its default.
         * @example {
         *       "note": "with the template of June"
         *     }
         */
        TokenizerPatch: {
            /** @description Let the tokenizer add its special tokens to a `text`, as engines do for completions. For `messages`, only the template adds special tokens. */
            add_special_tokens?: boolean | null;
            /** @description Jinja template that renders `messages`; its variables are `messages`, `add_generation_prompt` and the special tokens. */
            chat_template?: string | null;
            /** @description Required: model name with which engines attach. A model has at most one tokenizer. */
            model?: string;
            /** @description Free-form note; at most 1,024 characters. */
            note?: string | null;
            /** @description Special tokens for the template, such as `bos_token` and `eos_token`. */
            special_tokens?: {
                [key: string]: string | null;
            } | null;
            /** @description Required: the Hugging Face `tokenizer.json`, as an object or as the file's text; at most 32 MiB. */
            tokenizer?: Record<string, never> | string;
        };
        /**
         * TokenizerPut
         * @description The tokenizer of one model, as its engines load it. `model` and `tokenizer` have no default.
         * @example {
         *       "model": "llama",
         *       "tokenizer": {
         *         "added_tokens": [],
         *         "model": {
         *           "type": "WordLevel",
         *           "unk_token": "<unk>",
         *           "vocab": {
         *             "<unk>": 0,
         *             "hello": 1,
         *             "world": 2
         *           }
         *         },
         *         "pre_tokenizer": {
         *           "type": "WhitespaceSplit"
         *         },
         *         "version": "1.0"
         *       }
         *     }
         */
        TokenizerPut: {
            /**
             * @description Let the tokenizer add its special tokens to a `text`, as engines do for completions. For `messages`, only the template adds special tokens.
             * @default true
             */
            add_special_tokens: boolean;
            /** @description Jinja template that renders `messages`; its variables are `messages`, `add_generation_prompt` and the special tokens. */
            chat_template?: string | null;
            /** @description Required: model name with which engines attach. A model has at most one tokenizer. */
            model: string;
            /**
             * @description Free-form note; at most 1,024 characters.
             * @default
             */
            note: string;
            /** @description Special tokens for the template, such as `bos_token` and `eos_token`. */
            special_tokens?: {
                [key: string]: string;
            } | null;
            /** @description Required: the Hugging Face `tokenizer.json`, as an object or as the file's text; at most 32 MiB. */
            tokenizer: Record<string, never> | string;
        };
        /** TokenizerUsed */
        TokenizerUsed: {
            digest: string;
            name: string;
        };
        /** Totals */
        Totals: {
            /** @default 0 */
            aborted_blocks: number;
            /** @default 0 */
            corrupt_blocks: number;
            /** @default 0 */
            events_dropped: number;
            /** @default 0 */
            evicted_blocks: number;
            /** @default 0 */
            evicted_bytes: number;
            /** @default 0 */
            evictions_cancelled: number;
            /** @default 0 */
            false_reports: number;
            /** @default 0 */
            hinted_pin_blocks: number;
            /** @default 0 */
            hinted_ttl_blocks: number;
            /** @default 0 */
            hit_blocks: number;
            /** @default 0 */
            invalidated_blocks: number;
            /** @default 0 */
            malformed_messages: number;
            /** @default 0 */
            prefetched_session_blocks: number;
            /** @default 0 */
            quarantined_blocks: number;
            /** @default 0 */
            read_bytes: number;
            /** @default 0 */
            refused_blocks: number;
            /** @default 0 */
            refused_hinted_pin_blocks: number;
            /** @default 0 */
            released_session_blocks: number;
            /** @default 0 */
            requested_blocks: number;
            /** @default 0 */
            ring_dropped: number;
            /** @default 0 */
            ring_entries_rejected: number;
            /** @default 0 */
            stored_blocks: number;
            /** @default 0 */
            stored_bytes: number;
        };
        /** TracedRequest */
        TracedRequest: {
            block_bytes: number;
            hash_ids: number[];
            hit_blocks: number;
            input_length: number;
            model: string;
            output_length: number;
            tenant: string;
            timestamp: number;
        };
        /** TypeStatus */
        TypeStatus: {
            applied: boolean;
            behind: string[];
        };
        /** UsageCounts */
        UsageCounts: {
            byte_hours: number;
            evicted_blocks: number;
            evicted_bytes: number;
            refused_blocks: number;
            requested_tokens: number;
            saved_prefill_s: number;
            served_bytes: number;
            served_tokens: number;
            stored_blocks: number;
            stored_bytes: number;
            tiers: {
                [key: string]: components["schemas"]["TierUsageCounts"];
            };
            unrated_tokens: number;
        };
        /** UsageItem */
        UsageItem: {
            byte_hours: number;
            evicted_blocks: number;
            evicted_bytes: number;
            group: string;
            refused_blocks: number;
            requested_tokens: number;
            saved_prefill_s: number;
            served_bytes: number;
            served_tokens: number;
            start: number;
            stored_blocks: number;
            stored_bytes: number;
            tiers: {
                [key: string]: components["schemas"]["TierUsageCounts"];
            };
            unrated_tokens: number;
        };
        /** UsageReport */
        UsageReport: {
            from: number;
            /** @enum {string} */
            group_by: "tenant" | "model" | "node";
            items: components["schemas"]["UsageItem"][];
            /** @enum {string} */
            step: "1h" | "1d";
            to: number;
            totals: components["schemas"]["UsageCounts"];
        };
        /** VerifyAnswer */
        VerifyAnswer: {
            items: components["schemas"]["NodeVerification"][];
            tokenizer?: components["schemas"]["TokenizerUsed"] | null;
            total: number;
        };
        /**
         * VerifyPost
         * @description The blocks that match every given field; all blocks without any field. A prefix includes only its own blocks.
         * @example {
         *       "tenant": "acme"
         *     }
         */
        VerifyPost: {
            /**
             * @description Append the template's generation prompt after the messages.
             * @default false
             */
            add_generation_prompt: boolean;
            /**
             * @description Tokens per chunk, as configured in the engines.
             * @default 256
             */
            chunk_tokens: number;
            /** @description Keys of the chunks, 64 hex digits each. */
            keys?: string[] | null;
            /** @description Messages of a chat, rendered with the tokenizer's chat template. */
            messages?: Record<string, never>[] | null;
            /** @description Model, with all of its spaces. */
            model?: string | null;
            /** @description Name of one node. */
            node?: string | null;
            /** @description Names of several nodes. */
            nodes?: string[] | null;
            /** @description One space: 32 hex digits, as nodes list it. */
            space?: string | null;
            /** @description Tenant, as shown; `_default` is the empty salt. */
            tenant?: string | null;
            /** @description Text, which the tokenizer registered for the model turns into tokens. */
            text?: string | null;
            /** @description Token ids, split into chunks; only full chunks count. */
            tokens?: number[] | null;
        } & ((unknown | {
            node: unknown;
        } | {
            nodes: unknown;
        }) & unknown & (unknown | {
            tokens: unknown;
        } | {
            keys: unknown;
        } | {
            text: unknown;
        } | {
            messages: unknown;
        }) & unknown);
        /** VerifyProgress */
        VerifyProgress: {
            blocks: number;
            checked: number;
            corrupt: number;
            ended_at: number | null;
            gone: number;
            number: number;
            started_at: number;
            tenant: string | null;
            unread: number;
            without_checksum: number;
        };
        /**
         * WebhookAlert
         * @description One alert of a webhook. Unknown fields are ignored.
         */
        WebhookAlert: {
            /** @description At most 64; values are cut after 1,024 characters, and 8 KiB of labels and annotations are kept. `runbook_url` becomes a link. */
            annotations?: {
                [key: string]: string;
            };
            /**
             * @description End of a resolved alert; for a firing one, when it expires unless it is sent again. The year 1 or no value: after `alert_expire_s`.
             * @default
             */
            endsAt: string | unknown | "";
            /**
             * @description 1 to 64 of the characters A-Z a-z 0-9 _ -; by default a hash of the labels.
             * @default
             */
            fingerprint: string;
            /** @default  */
            generatorURL: string;
            /** @description At most 64, of at most 1,024 characters, and at most 4 KiB together. `tenant` and `node` name what the alert is about. */
            labels: {
                [key: string]: string;
            };
            /**
             * Format: date-time
             * @description RFC 3339.
             * @example 2026-01-31T12:00:00Z
             */
            startsAt: string;
            /** @enum {string} */
            status: "firing" | "resolved";
        };
        /** Whoami */
        Whoami: {
            actor: string;
            /** @enum {string} */
            role: "alerts" | "viewer" | "operator" | "admin";
            session: boolean;
            source: string;
            tenants: string[] | null;
            token_id: string;
        };
    };
    responses: {
        /** @description `urn:larder:problem:malformed`: The request is malformed */
        "400-malformed": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:unauthorized`: Authentication is required */
        "401-unauthorized": {
            headers: {
                "WWW-Authenticate": components["headers"]["WWW-Authenticate"];
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:forbidden`: The caller may not do this; `urn:larder:problem:foreign-origin`: The origin or host of the request is not allowed */
        "403-forbidden-foreign-origin": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:not-found`: Not found */
        "404-not-found": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:not-acceptable`: No representation that the client accepts */
        "406-not-acceptable": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:conflict`: Conflicts with an existing resource */
        "409-conflict": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:conflict`: Conflicts with an existing resource; `urn:larder:problem:floors-exceed-capacity`: The sum of all floors exceeds the pool of a node */
        "409-conflict-floors-exceed-capacity": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:floors-exceed-capacity`: The sum of all floors exceeds the pool of a node; `urn:larder:problem:conflict`: Conflicts with an existing resource */
        "409-floors-exceed-capacity-conflict": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:node-refused`: A node refused the request */
        "409-node-refused": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:precondition-failed`: The record does not match the precondition */
        "412-precondition-failed": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:too-large`: The body is too large */
        "413-too-large": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:unsupported-media-type`: The body is not JSON */
        "415-unsupported-media-type": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:invalid`: One or more fields are invalid */
        "422-invalid": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:precondition-required`: The request needs a precondition */
        "428-precondition-required": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:too-many-requests`: Too many requests */
        "429-too-many-requests": {
            headers: {
                "Retry-After": components["headers"]["Retry-After"];
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:head-too-large`: The path, the query or the headers are too large */
        "431-head-too-large": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:internal`: Internal error */
        "500-internal": {
            headers: {
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:node-unreachable`: The node is not connected or does not answer; `urn:larder:problem:store-unavailable`: The database does not answer; `urn:larder:problem:server-busy`: The server cannot serve the request now; `urn:larder:problem:stopping`: Larder is stopping */
        "503-node-unreachable-store-unavailable-server-busy-stopping": {
            headers: {
                "Retry-After": components["headers"]["Retry-After"];
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:node-unreachable`: The node is not connected or does not answer; `urn:larder:problem:store-unavailable`: The database does not answer; `urn:larder:problem:stopping`: Larder is stopping */
        "503-node-unreachable-store-unavailable-stopping": {
            headers: {
                "Retry-After": components["headers"]["Retry-After"];
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:not-ready`: Some nodes are lost or out of sync; `urn:larder:problem:store-unavailable`: The database does not answer; `urn:larder:problem:stopping`: Larder is stopping */
        "503-not-ready-store-unavailable-stopping": {
            headers: {
                "Retry-After": components["headers"]["Retry-After"];
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:store-unavailable`: The database does not answer; `urn:larder:problem:server-busy`: The server cannot serve the request now; `urn:larder:problem:stopping`: Larder is stopping */
        "503-store-unavailable-server-busy-stopping": {
            headers: {
                "Retry-After": components["headers"]["Retry-After"];
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
        /** @description `urn:larder:problem:store-unavailable`: The database does not answer; `urn:larder:problem:stopping`: Larder is stopping */
        "503-store-unavailable-stopping": {
            headers: {
                "Retry-After": components["headers"]["Retry-After"];
                "X-Request-Id": components["headers"]["X-Request-Id"];
                [name: string]: unknown;
            };
            content: {
                "application/problem+json": components["schemas"]["Problem"];
            };
        };
    };
    parameters: never;
    requestBodies: never;
    headers: {
        /** @description File name, for `text/csv`. */
        "Content-Disposition": string;
        /** @description Identifies this state, for `If-None-Match`; the ETag of a record is also for `If-Match`. */
        ETag: string;
        /** @description URL of the new record. */
        Location: string;
        /** @description Seconds to wait before the next attempt. */
        "Retry-After": number;
        /** @description The session's cookie, which scripts cannot read. */
        "Set-Cookie": string;
        /** @description `Bearer realm="larder"`. */
        "WWW-Authenticate": string;
        /** @description CSRF token to send with changes that use the session cookie; empty without a session. */
        "X-CSRF-Token": string;
        /** @description `index` of the snapshot. */
        "X-Larder-Index": number;
        /** @description Id of this request in the log and in the audit log. */
        "X-Request-Id": string;
    };
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    clear: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ClearPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ActionAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
        };
    };
    compressBlocks: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CompressPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["MoveAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
        };
    };
    demote: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SweepPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ActionAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
        };
    };
    dryRun: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["DryRunPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DryRunAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
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
                "application/json": components["schemas"]["SweepPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ActionAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
        };
    };
    locate: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["LookupPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LocateAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
        };
    };
    lookup: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["LookupPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LookupAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
        };
    };
    moveBlocks: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MovePost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["MoveAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
        };
    };
    getMove: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path: {
                node: string;
                number: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeMove"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-node-refused"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-stopping"];
        };
    };
    cancelMove: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
            };
            header?: never;
            path: {
                node: string;
                number: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeMove"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-node-refused"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-stopping"];
        };
    };
    restart: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RestartPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RestartAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    verify: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["VerifyPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VerifyAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
        };
    };
    getVerification: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path: {
                node: string;
                number: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeVerification"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-node-refused"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-stopping"];
        };
    };
    listAlerts: {
        parameters: {
            query?: {
                /** @description Only alerts in this state. */
                state?: "firing" | "resolved" | "expired";
                /** @description Only this node. */
                node?: string;
                /** @description Only of this tenant, as shown. */
                tenant?: string;
                /** @description Field to sort by; prefix it with `-` for descending order. */
                sort?: "" | "starts_at" | "-starts_at" | "received_at" | "-received_at" | "alertname" | "-alertname" | "severity" | "-severity" | "tenant" | "-tenant" | "node" | "-node";
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AlertList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    postAlerts: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AlertsPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AlertsTaken"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    listAnnotations: {
        parameters: {
            query?: {
                /** @description Start: Unix milliseconds or RFC 3339. Defaults to a day before `to`. */
                from?: string | unknown | unknown;
                /** @description End: Unix milliseconds or RFC 3339. Defaults to now. */
                to?: string | unknown | unknown;
                /** @description Only changes with all of these tags, with commas between them: `tenant:acme,type:quota`. */
                tags?: string;
                /** @description Maximum number of items. */
                limit?: number;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Annotation"][];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    applyDocument: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ApplyPut"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ApplyAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict-floors-exceed-capacity"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    listAudit: {
        parameters: {
            query?: {
                /** @description Only entries with this value. */
                actor?: string;
                /** @description Only entries with this value. */
                action?: string;
                /** @description Only entries with this value. */
                kind?: string;
                /** @description Only entries with this value. */
                name?: string;
                /** @description Only allowed actions, or only denied ones. */
                decision?: "allowed" | "denied";
                /** @description Earliest time, in Unix seconds. */
                since?: number;
                /** @description Latest time, in Unix seconds. */
                until?: number;
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AuditList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    exportAudit: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description One entry per line. */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/x-ndjson": components["schemas"]["AuditEntry"];
                    "text/plain": string;
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    verifyAudit: {
        parameters: {
            query?: {
                /** @description Hash that some entry must have. */
                expect?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AuditVerified"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    listBlocks: {
        parameters: {
            query?: {
                /** @description Only this tenant, as shown. */
                tenant?: string;
                /** @description Only this model. */
                model?: string;
                /** @description Only this space, 32 hex digits. */
                space?: string;
                /** @description Only this key, 64 hex digits. */
                key?: string;
                /** @description Only blocks of the hot prefix with this label in `/prefixes`. */
                prefix?: string;
                /** @description Only this node. */
                node?: string;
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BlockList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-stopping"];
        };
    };
    getBlock: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path: {
                key: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BlockCopies"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-stopping"];
        };
    };
    listCeilings: {
        parameters: {
            query?: {
                /** @description Field to sort by; prefix it with `-` for descending order. */
                sort?: "" | "tenant" | "-tenant";
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CeilingList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    getCeiling: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CeilingAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    putCeiling: {
        parameters: {
            query?: {
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string;
                /** @description `*`: only if the record does not exist yet. */
                "If-None-Match"?: "*";
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CeilingPut"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CeilingAnswer"];
                };
            };
            /** @description The record was created. */
            201: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CeilingAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    deleteCeiling: {
        parameters: {
            query?: never;
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
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
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            412: components["responses"]["412-precondition-failed"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    patchCeiling: {
        parameters: {
            query?: {
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/merge-patch+json": components["schemas"]["CeilingPatch"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CeilingAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    streamEvents: {
        parameters: {
            query?: never;
            header?: {
                /** @description `id` of the last `event` received: later events are sent first. */
                "Last-Event-ID"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Data of `event` messages. */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": components["schemas"]["LarderEvent"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    listEvents: {
        parameters: {
            query?: {
                /** @description Only events of this name; `push.*` selects all names that begin with `push.`. */
                name?: string;
                /** @description Only this node. */
                node?: string;
                /** @description Only this actor. */
                actor?: string;
                /** @description Earliest time, in Unix seconds. */
                since?: number;
                /** @description Field to sort by; prefix it with `-` for descending order. */
                sort?: "" | "at" | "-at" | "id" | "-id" | "name" | "-name" | "node" | "-node" | "actor" | "-actor";
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["EventList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    exportDocument: {
        parameters: {
            query?: {
                /** @description Only records of this type; may be repeated. */
                type?: ("quotas" | "pins" | "policies" | "tiers")[];
                /** @description Only records of this owner. */
                managed_by?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ExportAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    listFindings: {
        parameters: {
            query?: {
                /** @description Only this tenant, as shown. */
                tenant?: string;
                /** @description Only what concerns this node, or the fleet. */
                node?: string;
                /** @description Earliest events and changes to look at, in Unix seconds. Defaults to an hour ago. */
                since?: number;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FindingList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    listIpc: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeIpcList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    listJoinTokens: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["JoinTokenList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    createJoinToken: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["JoinTokenPost"];
            };
        };
        responses: {
            /** @description Document created, URL follows */
            201: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NewJoinToken"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    deleteJoinToken: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                ident: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    listManagers: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ManagerList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    listNodes: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    getNode: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    forgetNode: {
        parameters: {
            query?: {
                /** @description Remove the node even if it is connected and not drained. */
                force?: boolean;
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
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            409: components["responses"]["409-conflict"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    patchNode: {
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
                "application/merge-patch+json": components["schemas"]["NodePatch"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    drainNode: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
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
                "application/json": components["schemas"]["DrainPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    expelEngine: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
                client: number;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ExpelPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ExpelAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-node-refused"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
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
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ResizeAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-node-refused"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
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
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    getTrace: {
        parameters: {
            query?: {
                /** @description Seconds to look back; nodes keep about an hour. */
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
            /** @description One request per line. */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/x-ndjson": components["schemas"]["TracedRequest"];
                    "text/plain": string;
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-node-refused"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-stopping"];
        };
    };
    getOverview: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Overview"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    listPins: {
        parameters: {
            query?: {
                /** @description Only this tenant, as shown. */
                tenant?: string;
                /** @description Only this model. */
                model?: string;
                /** @description Only pins of this strength. */
                strength?: "soft" | "guaranteed" | "permanent";
                /** @description Only pins of this tier. */
                tier?: "host" | "gpu";
                /** @description Only records of this owner. */
                managed_by?: string;
                /** @description Field to sort by; prefix it with `-` for descending order. */
                sort?: "" | "name" | "-name" | "model" | "-model" | "tenant" | "-tenant" | "tier" | "-tier" | "key_count" | "-key_count" | "expires_at" | "-expires_at" | "generation" | "-generation" | "created_at" | "-created_at" | "updated_at" | "-updated_at";
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    getPin: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    putPin: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string;
                /** @description `*`: only if the record does not exist yet. */
                "If-None-Match"?: "*";
            };
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinAnswer"];
                };
            };
            /** @description The record was created. */
            201: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
        };
    };
    deletePin: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
            };
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
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
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            412: components["responses"]["412-precondition-failed"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    patchPin: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/merge-patch+json": components["schemas"]["PinPatch"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    getPinKeys: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinKeys"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    extendPin: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
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
                "application/json": components["schemas"]["PinExtend"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PinAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    listPolicies: {
        parameters: {
            query?: {
                /** @description Only policies with this algorithm. */
                algorithm?: "lru" | "age_class" | "s3fifo" | "arc" | "slru" | "lfu" | "fifo" | "noop";
                /** @description Only records of this owner. */
                managed_by?: string;
                /** @description Field to sort by; prefix it with `-` for descending order. */
                sort?: "" | "name" | "-name" | "algorithm" | "-algorithm" | "priority" | "-priority" | "generation" | "-generation" | "created_at" | "-created_at" | "updated_at" | "-updated_at";
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    getPolicy: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    putPolicy: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string;
                /** @description `*`: only if the record does not exist yet. */
                "If-None-Match"?: "*";
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyAnswer"];
                };
            };
            /** @description The record was created. */
            201: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    deletePolicy: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
            };
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
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
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            412: components["responses"]["412-precondition-failed"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    patchPolicy: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/merge-patch+json": components["schemas"]["PolicyPatch"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PolicyAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    listPrefixes: {
        parameters: {
            query?: {
                /** @description Rank by bytes served, or by hits. */
                by?: "bytes" | "hits";
                /** @description Only this tenant, as shown. */
                tenant?: string;
                /** @description Maximum number of items. */
                limit?: number;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PrefixList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-stopping"];
        };
    };
    listPushes: {
        parameters: {
            query?: {
                /** @description Only pushes of this type. */
                type?: "quotas" | "pins" | "policies" | "tiers";
                /** @description Only this node. */
                node?: string;
                /** @description Only pushes in this state. */
                state?: "acked" | "nacked" | "timed_out" | "refused";
                /** @description Maximum number of items. */
                limit?: number;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PushList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    listQuotas: {
        parameters: {
            query?: {
                /** @description Only quotas of this mode. */
                mode?: "enforce" | "observe";
                /** @description Only records of this owner. */
                managed_by?: string;
                /** @description Field to sort by; prefix it with `-` for descending order. */
                sort?: "" | "tenant" | "-tenant" | "limit_bytes" | "-limit_bytes" | "floor_bytes" | "-floor_bytes" | "weight" | "-weight" | "generation" | "-generation" | "created_at" | "-created_at" | "updated_at" | "-updated_at";
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    getQuota: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    putQuota: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string;
                /** @description `*`: only if the record does not exist yet. */
                "If-None-Match"?: "*";
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaAnswer"];
                };
            };
            /** @description The record was created. */
            201: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-floors-exceed-capacity-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    deleteQuota: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
            };
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
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
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            412: components["responses"]["412-precondition-failed"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    patchQuota: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
            };
            path: {
                tenant: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/merge-patch+json": components["schemas"]["QuotaPatch"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-floors-exceed-capacity-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    listRates: {
        parameters: {
            query?: {
                /** @description Only this model. */
                model?: string;
                /** @description Field to sort by; prefix it with `-` for descending order. */
                sort?: "" | "name" | "-name" | "model" | "-model" | "prefill_tokens_per_s" | "-prefill_tokens_per_s" | "created_at" | "-created_at" | "updated_at" | "-updated_at";
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RateList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    getRate: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RateAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    putRate: {
        parameters: {
            query?: {
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string;
                /** @description `*`: only if the record does not exist yet. */
                "If-None-Match"?: "*";
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RatePut"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RateAnswer"];
                };
            };
            /** @description The record was created. */
            201: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RateAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    deleteRate: {
        parameters: {
            query?: never;
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
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
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            412: components["responses"]["412-precondition-failed"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    patchRate: {
        parameters: {
            query?: {
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/merge-patch+json": components["schemas"]["RatePatch"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RateAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    findRequests: {
        parameters: {
            query: {
                /** @description The id of the request, as the engine's response has it, or the engine's own longer id. */
                id: string;
                /** @description Only this node. */
                node?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RequestList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-stopping"];
        };
    };
    getSeries: {
        parameters: {
            query: {
                /** @description Name of a series, from `GET /api/v1/series/names`; repeatable. */
                name: ("hit_ratio" | "tier_hit_ratio" | "used_bytes" | "capacity_bytes" | "ready_bytes" | "reserved_bytes" | "quarantined_bytes" | "pinned_bytes" | "pin_budget_bytes" | "committed_bytes" | "padding_bytes" | "free_slot_bytes" | "limit_bytes" | "blocks" | "leased_blocks" | "nodes" | "engines" | "gpu_copy_bytes" | "tier_budget_bytes" | "tier_used_bytes" | "tier_waiting_bytes" | "resident_bytes" | "requested_blocks_per_s" | "hit_blocks_per_s" | "stored_blocks_per_s" | "evicted_blocks_per_s" | "refused_blocks_per_s" | "would_refuse_blocks_per_s" | "aborted_blocks_per_s" | "invalidated_blocks_per_s" | "corrupt_blocks_per_s" | "evictions_cancelled_per_s" | "hit_tokens_per_s" | "tier_hit_tokens_per_s" | "stored_bytes_per_s" | "read_bytes_per_s" | "tier_hit_bytes_per_s" | "evicted_bytes_per_s" | "tier_spilled_bytes_per_s" | "tier_loaded_bytes_per_s" | "tier_evicted_blocks_per_s" | "acquires_per_s" | "acquire_seconds" | "cpu_cores")[];
                /** @description Add the series of this node; repeatable. */
                node?: string[];
                /** @description Add the series of this tenant, as shown; repeatable. `/other` is the sum of those without series of their own. Without `node` and `tenant`, the answer is about all nodes and tenants. */
                tenant?: string[];
                /** @description Seconds to look back from `end`: at most 30 days. */
                range_s?: number;
                /** @description Seconds between points: a multiple of 10, or of 300 for times more than a day ago. By default the smallest for at most 720 points. If the points of a time are further apart, their values are repeated. */
                step_s?: number;
                /** @description Newest time, in Unix seconds. Defaults to now. */
                end?: number;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SeriesAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    listSeriesNames: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SeriesNames"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    getSession: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-CSRF-Token": components["headers"]["X-CSRF-Token"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    logIn: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SessionPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "Set-Cookie": components["headers"]["Set-Cookie"];
                    "X-CSRF-Token": components["headers"]["X-CSRF-Token"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    logOut: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The session has ended. */
            204: {
                headers: {
                    "Set-Cookie": components["headers"]["Set-Cookie"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    listSessions: {
        parameters: {
            query?: {
                /** @description Only this tenant, as shown. */
                tenant?: string;
                /** @description Only this node. */
                node?: string;
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AgentSessionList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-stopping"];
        };
    };
    getSessionState: {
        parameters: {
            query?: {
                /** @description Tenant of the session, as shown; the only one that the token is limited to, or `_default`. */
                tenant?: string;
                /** @description Only this node. */
                node?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AgentSessionCopies"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-stopping"];
        };
    };
    prefetchSession: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AgentSessionPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionActionAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
        };
    };
    releaseSession: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AgentSessionPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionActionAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
        };
    };
    retainSession: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                session: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AgentSessionPost"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SessionActionAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-node-unreachable-store-unavailable-server-busy-stopping"];
        };
    };
    getSnapshot: {
        parameters: {
            query?: {
                /** @description `index` of the last answer: wait for a newer state. */
                index?: number;
                /** @description With `index`: longest wait for a newer state (`30s`, `500ms`; at most 300 s, plus up to a sixteenth); then the answer is the current state. */
                wait?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A header repeats the index. */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Larder-Index": components["headers"]["X-Larder-Index"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SnapshotAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    listTenants: {
        parameters: {
            query?: {
                /** @description Only tenants with a quota (true), or only tenants without one (false). */
                managed?: boolean;
                /** @description Field to sort by; prefix it with `-` for descending order. */
                sort?: "" | "tenant" | "-tenant" | "bytes" | "-bytes" | "blocks" | "-blocks" | "pinned_bytes" | "-pinned_bytes" | "lookup_bytes" | "-lookup_bytes" | "would_refuse_blocks" | "-would_refuse_blocks" | "requested_blocks" | "-requested_blocks" | "hit_blocks" | "-hit_blocks" | "stored_blocks" | "-stored_blocks" | "evicted_blocks" | "-evicted_blocks" | "refused_blocks" | "-refused_blocks" | "limit_bytes" | "-limit_bytes" | "floor_bytes" | "-floor_bytes" | "effective_floor_bytes" | "-effective_floor_bytes" | "weight" | "-weight" | "pin_budget_bytes" | "-pin_budget_bytes" | "store_rate_bytes" | "-store_rate_bytes" | "pins" | "-pins" | "hit_ratio" | "-hit_ratio";
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    getTenant: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    adoptTenant: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
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
                    ETag: components["headers"]["ETag"];
                    Location: components["headers"]["Location"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict-floors-exceed-capacity"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    listTiers: {
        parameters: {
            query?: {
                /** @description Only tiers of this type. */
                type?: string;
                /** @description Only records of this owner. */
                managed_by?: string;
                /** @description Field to sort by; prefix it with `-` for descending order. */
                sort?: "" | "name" | "-name" | "type" | "-type" | "order" | "-order" | "budget_bytes" | "-budget_bytes" | "generation" | "-generation" | "created_at" | "-created_at" | "updated_at" | "-updated_at";
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TierList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    getTier: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TierAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    putTier: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string;
                /** @description `*`: only if the record does not exist yet. */
                "If-None-Match"?: "*";
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TierPut"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TierAnswer"];
                };
            };
            /** @description The record was created. */
            201: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TierAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    deleteTier: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
            };
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
            };
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
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TierDeletion"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            412: components["responses"]["412-precondition-failed"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    patchTier: {
        parameters: {
            query?: {
                /** @description Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s). */
                wait?: string;
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/merge-patch+json": components["schemas"]["TierPatch"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TierAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    listTokenizers: {
        parameters: {
            query?: {
                /** @description Field to sort by; prefix it with `-` for descending order. */
                sort?: "" | "name" | "-name" | "model" | "-model" | "created_at" | "-created_at" | "updated_at" | "-updated_at";
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenizerList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    getTokenizer: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenizerAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    putTokenizer: {
        parameters: {
            query?: {
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header?: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match"?: string;
                /** @description `*`: only if the record does not exist yet. */
                "If-None-Match"?: "*";
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
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenizerAnswer"];
                };
            };
            /** @description The record was created. */
            201: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenizerAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    deleteTokenizer: {
        parameters: {
            query?: never;
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
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
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            412: components["responses"]["412-precondition-failed"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    patchTokenizer: {
        parameters: {
            query?: {
                /** @description Check the change and return the record as it would be; store nothing. */
                dry_run?: boolean;
            };
            header: {
                /** @description The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a record that is there. */
                "If-Match": string;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/merge-patch+json": components["schemas"]["TokenizerPatch"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenizerAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            412: components["responses"]["412-precondition-failed"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            428: components["responses"]["428-precondition-required"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    listTokens: {
        parameters: {
            query?: {
                /** @description Field to sort by; prefix it with `-` for descending order. */
                sort?: "" | "name" | "-name" | "role" | "-role" | "created_at" | "-created_at" | "expires_at" | "-expires_at" | "last_used_at" | "-last_used_at";
                /** @description Maximum number of items. */
                limit?: number;
                /** @description `next_cursor` of the previous page; empty for the first page. */
                cursor?: string;
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenList"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    createToken: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TokenPost"];
            };
        };
        responses: {
            /** @description Document created, URL follows */
            201: {
                headers: {
                    Location: components["headers"]["Location"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenMade"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    getToken: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path: {
                token_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenAnswer"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    revokeToken: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                token_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, nothing follows */
            204: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            409: components["responses"]["409-conflict"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    patchToken: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                token_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/merge-patch+json": components["schemas"]["TokenPatch"];
            };
        };
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenAnswer"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            404: components["responses"]["404-not-found"];
            406: components["responses"]["406-not-acceptable"];
            409: components["responses"]["409-conflict"];
            413: components["responses"]["413-too-large"];
            415: components["responses"]["415-unsupported-media-type"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-server-busy-stopping"];
        };
    };
    getUsage: {
        parameters: {
            query?: {
                /** @description What each item describes. */
                group_by?: "tenant" | "model" | "node";
                /** @description Length of one time step. */
                step?: "1h" | "1d";
                /** @description Start: Unix seconds or RFC 3339. Defaults to a day before `to`, or 30 days for steps of a day. */
                from?: string | unknown | unknown;
                /** @description End: Unix seconds or RFC 3339. Defaults to now. */
                to?: string | unknown | unknown;
                /** @description Only this tenant, as shown. */
                tenant?: string;
                /** @description Format of the answer; overrides the `Accept` header. */
                format?: "json" | "csv";
            };
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description As `text/csv`: one line per item. */
            200: {
                headers: {
                    "Content-Disposition": components["headers"]["Content-Disposition"];
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["UsageReport"];
                    "text/csv": string;
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    whoami: {
        parameters: {
            query?: never;
            header?: {
                /** @description ETags of states that the caller already has. */
                "If-None-Match"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Request fulfilled, document follows */
            200: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Whoami"];
                };
            };
            /** @description The caller already has this state (`If-None-Match`). */
            304: {
                headers: {
                    ETag: components["headers"]["ETag"];
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content?: never;
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            406: components["responses"]["406-not-acceptable"];
            422: components["responses"]["422-invalid"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
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
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Health"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-store-unavailable-stopping"];
        };
    };
    getFleetHealth: {
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
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FleetHealth"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-not-ready-store-unavailable-stopping"];
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
                    "X-Request-Id": components["headers"]["X-Request-Id"];
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Readiness"];
                };
            };
            400: components["responses"]["400-malformed"];
            401: components["responses"]["401-unauthorized"];
            403: components["responses"]["403-forbidden-foreign-origin"];
            429: components["responses"]["429-too-many-requests"];
            431: components["responses"]["431-head-too-large"];
            500: components["responses"]["500-internal"];
            503: components["responses"]["503-not-ready-store-unavailable-stopping"];
        };
    };
}
