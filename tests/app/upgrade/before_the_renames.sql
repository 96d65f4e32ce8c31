BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0006');
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	actor VARCHAR(128) NOT NULL, 
	action VARCHAR(128) NOT NULL, 
	kind VARCHAR(128) NOT NULL, 
	name VARCHAR(256) NOT NULL, 
	type VARCHAR(128) NOT NULL, 
	generation BIGINT NOT NULL, 
	"before" JSON, 
	"after" JSON, 
	request_id VARCHAR(128) NOT NULL, token_id VARCHAR(128) DEFAULT '' NOT NULL, source VARCHAR(128) DEFAULT '' NOT NULL, trace_id VARCHAR(128) DEFAULT '' NOT NULL, decision VARCHAR(128) DEFAULT 'allowed' NOT NULL, reason TEXT DEFAULT '' NOT NULL, hash VARCHAR(64) DEFAULT '' NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (id)
);
INSERT INTO "audit" VALUES(1,1.79535681284477615358e+09,'admin','create','tokenizer','words','',0,NULL,'{"model": "llama", "digest": "225c9964ad84cbf1c0cf6ebf98c8244db059282347371157141a95a127f9776c", "chat_template": "{{ messages[0][''content''] }}", "special_tokens": {"bos_token": "<s>"}, "add_special_tokens": false, "note": "w0 to w15"}','e1f07fbf195d4ebdb525bc147ff17e14','','127.0.0.1','','allowed','','723e9dcb6dcab5a980f6860adf2b61550778dc96f278386f81311c15b7edf239');
INSERT INTO "audit" VALUES(2,1.79535681291134738921e+09,'admin','create','quota','acme','quotas',1,NULL,'{"limit_bytes": 268435456, "floor_bytes": 16777216, "weight": 2.5, "pin_budget_bytes": 8388608, "store_rate_bytes": 1048576, "on_exceed": "reject", "mode": "enforce", "note": "trial", "managed_by": "fleet-repo", "selector": null}','9fdc0a09b83e49b5926916acf81035ab','','127.0.0.1','','allowed','','52ed2a78e3e8f775c93767fb6e65a58015a05a0fdac8f821dc4eb8ff646d3527');
INSERT INTO "audit" VALUES(3,1.79535681297701048848e+09,'admin','update','quota','acme','quotas',2,'{"limit_bytes": 268435456, "floor_bytes": 16777216, "weight": 2.5, "pin_budget_bytes": 8388608, "store_rate_bytes": 1048576, "on_exceed": "reject", "mode": "enforce", "note": "trial", "managed_by": "fleet-repo", "selector": null}','{"limit_bytes": 536870912, "floor_bytes": 16777216, "weight": 2.5, "pin_budget_bytes": 8388608, "store_rate_bytes": 1048576, "on_exceed": "reject", "mode": "enforce", "note": "bought", "managed_by": "fleet-repo", "selector": null}','259f4ec029f847ec91be982249f283a8','','127.0.0.1','','allowed','','61965d0850b9ccff3abf0bdddc1e496efdbe9c5a51e791f0ea41c2f6b4225f09');
INSERT INTO "audit" VALUES(4,1.79535681301361298555e+09,'admin','create','quota','_default','quotas',3,NULL,'{"limit_bytes": null, "floor_bytes": 0, "weight": 0.5, "pin_budget_bytes": null, "store_rate_bytes": null, "on_exceed": "evict_self", "mode": "observe", "note": "", "managed_by": "", "selector": null}','15e565293ebb49a0bf6c763f106a70f3','','127.0.0.1','','allowed','','cd25e9b7990def4ec93e8d6f2c2330069ffa82e99b19fae59f2e7dad224aeac1');
INSERT INTO "audit" VALUES(5,1.79535681303796863556e+09,'admin','create','quota','zoned','quotas',4,NULL,'{"limit_bytes": 4096, "floor_bytes": 0, "weight": 1.0, "pin_budget_bytes": null, "store_rate_bytes": null, "on_exceed": "evict_self", "mode": "enforce", "note": "", "managed_by": "", "selector": {"zone": "b"}}','b16d26eca8944ff79a3244817108eb6a','','127.0.0.1','','allowed','','4bbf4600d46e6f50db18bc544aa846a6ab061bd2412f33aedfbfcf713d32c8fe');
INSERT INTO "audit" VALUES(6,1.79535681306802129744e+09,'admin','create','quota','gone','quotas',5,NULL,'{"limit_bytes": 1, "floor_bytes": 0, "weight": 1.0, "pin_budget_bytes": null, "store_rate_bytes": null, "on_exceed": "evict_self", "mode": "enforce", "note": "", "managed_by": "", "selector": null}','25f79ec25f1a46fe99ae1d97fb36f9da','','127.0.0.1','','allowed','','df874dc88aec2f187d706476ee7fac5db7a02d123dfcacafb8c42d180cd746e7');
INSERT INTO "audit" VALUES(7,1.79535681310092449193e+09,'admin','delete','quota','gone','quotas',6,'{"limit_bytes": 1, "floor_bytes": 0, "weight": 1.0, "pin_budget_bytes": null, "store_rate_bytes": null, "on_exceed": "evict_self", "mode": "enforce", "note": "", "managed_by": "", "selector": null}',NULL,'f23d956963bc46db852068cb4095d966','','127.0.0.1','','allowed','','d869b69e2e839550547f2e3c1052c6d21ad4cc66eac055a37f5e2336dc012b41');
INSERT INTO "audit" VALUES(8,1.79535681316909074786e+09,'admin','create','pin','soft-host','pins',1,NULL,'{"model": "llama", "tenant": "acme", "strength": "soft", "tier": "host", "key_count": 2, "keys_digest": "26d6a7a7f1336616856f90198297a55556e1dde0dad886cbb1101300554d62eb", "expires_at": null, "refresh_s": null, "note": "soft on host", "managed_by": "", "selector": null}','240cf225752f456e8da66a402a9edb2c','','127.0.0.1','','allowed','','9ac73c09c55fe5a257e83aae0e510d1d174bb750ec1650339a54b56532b15e8e');
INSERT INTO "audit" VALUES(9,1.79535681323649168013e+09,'admin','create','pin','soft-gpu','pins',2,NULL,'{"model": "llama", "tenant": "acme", "strength": "soft", "tier": "gpu", "key_count": 2, "keys_digest": "26d6a7a7f1336616856f90198297a55556e1dde0dad886cbb1101300554d62eb", "expires_at": null, "refresh_s": null, "note": "soft on gpu", "managed_by": "", "selector": null}','2ceb0692a23d4a1fad2142c7c38fbb2d','','127.0.0.1','','allowed','','1641a5783dc6dc0c4273cc181f5bdcb91c5ef31910657f210d0f4f635f8ed1f3');
INSERT INTO "audit" VALUES(10,1.79535681327921366689e+09,'admin','create','pin','guaranteed-host','pins',3,NULL,'{"model": "llama", "tenant": "acme", "strength": "guaranteed", "tier": "host", "key_count": 2, "keys_digest": "26d6a7a7f1336616856f90198297a55556e1dde0dad886cbb1101300554d62eb", "expires_at": null, "refresh_s": null, "note": "guaranteed on host", "managed_by": "", "selector": null}','153f5a044eae4906ba622eddcb17f9e2','','127.0.0.1','','allowed','','27b29692d2cb2e18c12f739012dcf5e7dd5f097490d06d10bcf944640ecfba21');
INSERT INTO "audit" VALUES(11,1.79535681333162045478e+09,'admin','create','pin','guaranteed-gpu','pins',4,NULL,'{"model": "llama", "tenant": "acme", "strength": "guaranteed", "tier": "gpu", "key_count": 2, "keys_digest": "26d6a7a7f1336616856f90198297a55556e1dde0dad886cbb1101300554d62eb", "expires_at": null, "refresh_s": null, "note": "guaranteed on gpu", "managed_by": "", "selector": null}','297d0f1c6a884133b39cd8ac8fd41644','','127.0.0.1','','allowed','','0038f6afa948414f22c91e1433e6de9b89bb2511cceca5d3d4788fa4965950d6');
INSERT INTO "audit" VALUES(12,1.79535681340563678743e+09,'admin','create','pin','permanent-host','pins',5,NULL,'{"model": "llama", "tenant": "acme", "strength": "permanent", "tier": "host", "key_count": 2, "keys_digest": "26d6a7a7f1336616856f90198297a55556e1dde0dad886cbb1101300554d62eb", "expires_at": null, "refresh_s": null, "note": "permanent on host", "managed_by": "", "selector": null}','dd070707f00c4a6a9f1e5ac81a0b218b','','127.0.0.1','','allowed','','76f843514c5fb0f0931fe98064dbaa8f49c6267b1a315995ea62f9192a6ce027');
INSERT INTO "audit" VALUES(13,1.79535681346057891848e+09,'admin','create','pin','permanent-gpu','pins',6,NULL,'{"model": "llama", "tenant": "acme", "strength": "permanent", "tier": "gpu", "key_count": 2, "keys_digest": "26d6a7a7f1336616856f90198297a55556e1dde0dad886cbb1101300554d62eb", "expires_at": null, "refresh_s": null, "note": "permanent on gpu", "managed_by": "", "selector": null}','85c29a29af4c4338998640547ae3bb83','','127.0.0.1','','allowed','','9b25e9a016841f5991d5a821123e1584963654b2f78d425bef926258350a3f20');
INSERT INTO "audit" VALUES(14,1.79535681356956124303e+09,'admin','create','pin','refreshed','pins',7,NULL,'{"model": "llama", "tenant": "_default", "strength": "guaranteed", "tier": "host", "key_count": 2, "keys_digest": "681a5afd2f2058ecd4c497cea06684377a99b477824b878cc83c66cea8beaa83", "expires_at": 2097756813.546114, "refresh_s": 302400000.0, "note": "", "managed_by": "", "selector": null}','c58cd29720a34af5a734339562b56579','','127.0.0.1','','allowed','','65418a7bc0db8c4c02525f79dd1cfc48a95965d66ced2cca551fd5a5777cff8d');
INSERT INTO "audit" VALUES(15,1.7953568136141064167e+09,'admin','create','pin','ends','pins',8,NULL,'{"model": "llama", "tenant": "_default", "strength": "guaranteed", "tier": "host", "key_count": 2, "keys_digest": "681a5afd2f2058ecd4c497cea06684377a99b477824b878cc83c66cea8beaa83", "expires_at": 2100000000.0, "refresh_s": null, "note": "", "managed_by": "", "selector": {"zone": "b"}}','75a5184765334e5f8ec6786eb4c5f05d','','127.0.0.1','','allowed','','0362670c27f5206e927abecdf604ca4df3290562433c25cffdacac316c3c7fb9');
INSERT INTO "audit" VALUES(16,1.79535681365302562714e+09,'admin','create','pin','by-keys','pins',9,NULL,'{"model": "llama", "tenant": "_default", "strength": "guaranteed", "tier": "host", "key_count": 3, "keys_digest": "6036c41849da9c076ed79654d434017387a88fb833c2856b32e18218b3341c5f", "expires_at": null, "refresh_s": null, "note": "", "managed_by": "fleet-repo", "selector": null}','b078e83e389a4fba9e309282b264d9a2','','127.0.0.1','','allowed','','c2b222986bb066386d96c70432bb06436693e5cdd1187deaffaa4f49ab9e4da7');
INSERT INTO "audit" VALUES(17,1.79535681441091871267e+09,'admin','create','pin','by-text','pins',10,NULL,'{"model": "llama", "tenant": "_default", "strength": "guaranteed", "tier": "host", "key_count": 2, "keys_digest": "727a93a4a45306f682fe99955c9ce6f710a69bee02150aa1a6597415c3d805c6", "expires_at": null, "refresh_s": null, "note": "", "managed_by": "", "selector": null}','0f5fa375426649e48b1b3670b8c991a0','','127.0.0.1','','allowed','','4f60312eecc68f54f8985ec6b241d2b1076e304cabbdaf12d4ed0b1777449b01');
INSERT INTO "audit" VALUES(18,1.79535681446807408338e+09,'admin','create','policy','default','policies',1,NULL,'{"algorithm": "s3fifo", "admission": true, "admission_idle_s": 60.0, "high_watermark": 0.9, "low_watermark": 0.8, "note": "all", "managed_by": "", "selector": null, "priority": 0}','8fbd3f1db76b4919b3fec64b4dee1eea','','127.0.0.1','','allowed','','a2490ffba2ec6414194de69348991021c7229e885cc0b48618563348eb22c5d0');
INSERT INTO "audit" VALUES(19,1.79535681450557184218e+09,'admin','create','policy','zone-b','policies',2,NULL,'{"algorithm": "lfu", "admission": false, "admission_idle_s": 240.0, "high_watermark": 1.0, "low_watermark": 1.0, "note": "", "managed_by": "", "selector": {"zone": "b"}, "priority": 7}','2982f2a29c11400fa3a20d2894ddf33a','','127.0.0.1','','allowed','','af1c32428ae63a8b468b3945250c3d7e5db772893e4123f07c5962c982661b79');
INSERT INTO "audit" VALUES(20,1.79535681454291605949e+09,'admin','create','ceiling','acme','',0,NULL,'{"max_limit_bytes": 1073741824, "max_floor_bytes": 0, "max_pin_budget_bytes": null, "max_store_rate_bytes": null, "max_weight": 3.0, "max_ttl_s": 3600.0, "strengths": ["soft"], "no_bound": ["max_store_rate_bytes"], "note": "by contract"}','d21565ef96da431ca6c857059c216a05','','127.0.0.1','','allowed','','f0599017f7567144886151d4c97a2cb7cdf769292a5175b97cfd0688292dd8d8');
INSERT INTO "audit" VALUES(21,1.79535681456433868401e+09,'admin','create','rate','llama','',0,NULL,'{"model": "llama", "space": "", "prefill_tokens_per_s": 1000.0, "note": "measured"}','d4187099806640148e1616219dfa629e','','127.0.0.1','','allowed','','eb6a4d05f3ca97a07817a4f3a2c54b5a4479378d74af8fa3366d945d059c207e');
INSERT INTO "audit" VALUES(22,1.79535681460729670527e+09,'admin','create','rate','llama-one-space','',0,NULL,'{"model": "llama", "space": "ffffffffffffffffffffffffffffffff", "prefill_tokens_per_s": 500.0, "note": ""}','14c30e950b8f4fa59920a509f1426c3e','','127.0.0.1','','allowed','','8e3dcc1623ee1076ebcd4bcba7338d708b79ac96e54ab8459bcc6d7a3a877d46');
INSERT INTO "audit" VALUES(23,1.79535681461853766438e+09,'admin','create','token','viewer','',0,NULL,'{"id": "ffddc154da07", "name": "viewer", "role": "viewer", "tenants": null, "expires_at": null}','1a0c35c9f71b49e4b58616a9750c4976','','127.0.0.1','','allowed','','3772eb4fafbd1cb1c66b78e4d41577638fe7210a37b184a286f9b33bc4af67fe');
INSERT INTO "audit" VALUES(24,1795356814.63998,'admin','create','token','operator','',0,NULL,'{"id": "7883e3967f60", "name": "operator", "role": "operator", "tenants": ["acme"], "expires_at": null}','c9847dd87670401a9c2e2276bc525a4a','','127.0.0.1','','allowed','','7e8b6cfbccb45a42ff46363a2a71aa8dae84231ef4c9a9f545163417b169ec65');
INSERT INTO "audit" VALUES(25,1.79535681465219140056e+09,'admin','create','token','admin-of-the-night','',0,NULL,'{"id": "67500e02091c", "name": "admin-of-the-night", "role": "admin", "tenants": null, "expires_at": 2100000000.0}','4cadd17ba73d44599c94f6fc909ef7a5','','127.0.0.1','','allowed','','a54e9108d34ec2b2370311aceba8937a8aec6180ba93cf27b1571cd5822dce72');
INSERT INTO "audit" VALUES(26,1.7953568146676633358e+09,'operator','PUT','request','/api/v1/quotas/other','',0,NULL,NULL,'7482adc8b0a34d5dbc2a000d0885b537','7883e3967f60','127.0.0.1','','denied','this token is limited to the tenants ''acme'', not ''other''','8a2381e9dd3cb5bcb4c41d3a70ca2a329e44afe6fe4bcafbc8b90fbef1155ee9');
INSERT INTO "audit" VALUES(27,1.79535681472235083581e+09,'operator','login','session','operator','',0,NULL,NULL,'61f8ed3f0983493ca1223dc6d45ca039','7883e3967f60','127.0.0.1','','allowed','','467e70d4ec33894b84581759327948f20ecd89e4ee900bed06e7cf6174d615bb');
INSERT INTO "audit" VALUES(28,1.79535681474924206733e+09,'admin-of-the-night','login','session','admin-of-the-night','',0,NULL,NULL,'40c58e6cc26c4454a0fc92d66397bf06','67500e02091c','127.0.0.1','','allowed','','070c1709b5e18ff646bd2632ca3c5e8f04ee9f9fcbba37c77c725b4cfaf615f2');
INSERT INTO "audit" VALUES(29,1.79535681477200341222e+09,'admin','create','join_token','1275537434dbff49','',0,NULL,'{"name": "rack 7", "labels": {"zone": "b"}, "uses_left": 2, "expires_at": null}','9b41f6f7a646458ca435d5230348d09f','','127.0.0.1','','allowed','','8dc02f9e281e7c66973bb8f4b76d0d641ae25847fc1751bcd0d1097fd79e8db5');
INSERT INTO "audit" VALUES(30,1.7953568148070566654e+09,'node:node-b','join','node','node-b','',0,NULL,'{"public_key": "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk", "token": "1275537434dbff49", "labels": {"rack": "7", "zone": "b"}}','','','127.0.0.1','','allowed','','6d5cd72027ad730643e10f1d7eca21752ec8e5b9d841655cccf18643099af5f1');
INSERT INTO "audit" VALUES(31,1.79535681485861301417e+09,'admin','label','node','node-a','',0,'{"labels": {}}','{"labels": {"zone": "a"}}','7362e1a75cd64de9b66e244e200efdeb','','127.0.0.1','','allowed','','5082aa64a428b66bc7c9fe474e55e9cddfb2818f24c22a1e34adfd6a4e0cabbd');
INSERT INTO "audit" VALUES(32,1.79535681488901066775e+09,'admin','resize','node','node-a','',0,NULL,'{"pool_bytes": 2147483648}','ab87e76782b34886a6a7a703f1f780c0','','127.0.0.1','','allowed','','dd7a451655f788b5cbab30840e65fa8b072f04dd6ed0f8a8a08a007b0b12d541');
INSERT INTO "audit" VALUES(33,1795356814.9281,'admin','drain','node','node-a','',0,'{"draining": false}','{"draining": true}','ae9cdfca7060494782f6d5216556e386','','127.0.0.1','','allowed','','2477a33a8685779f20be36ef69fbb25156259f023ef460905ff30521f90001b1');
INSERT INTO "audit" VALUES(34,1.79535681499725365637e+09,'admin','create','quota','refused','quotas',7,NULL,'{"limit_bytes": 1099511627776, "floor_bytes": 0, "weight": 1.0, "pin_budget_bytes": null, "store_rate_bytes": null, "on_exceed": "evict_self", "mode": "enforce", "note": "", "managed_by": "", "selector": null}','29ab8a6c6c83406d8287312f6e4166a6','','127.0.0.1','','allowed','','3ce681b5fecaf7f44fc8210b29990ce72dcd4ec4acbec9a8105c5aeb4c4aff6b');
INSERT INTO "audit" VALUES(35,1.79535681594110584254e+09,'admin','update','quota','refused','quotas',8,'{"limit_bytes": 1099511627776, "floor_bytes": 0, "weight": 1.0, "pin_budget_bytes": null, "store_rate_bytes": null, "on_exceed": "evict_self", "mode": "enforce", "note": "", "managed_by": "", "selector": null}','{"limit_bytes": 1048576, "floor_bytes": 0, "weight": 1.0, "pin_budget_bytes": null, "store_rate_bytes": null, "on_exceed": "evict_self", "mode": "enforce", "note": "", "managed_by": "", "selector": null}','b0d1fa490f0c4d06946f726234d68457','','127.0.0.1','','allowed','','686081d3818c07678ef00e1a85ba805a64d39a6f3e24806d7c6ac6efe2d14d50');
CREATE TABLE audit_head (
	id BIGINT NOT NULL, 
	last_id BIGINT NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_audit_head PRIMARY KEY (id)
);
INSERT INTO "audit_head" VALUES(1,35,'686081d3818c07678ef00e1a85ba805a64d39a6f3e24806d7c6ac6efe2d14d50');
CREATE TABLE ceilings (
	tenant VARCHAR(128) NOT NULL, 
	max_limit_bytes BIGINT, 
	max_floor_bytes BIGINT, 
	max_weight DOUBLE, 
	max_pin_budget_bytes BIGINT, 
	max_store_rate_bytes BIGINT, 
	max_ttl_s DOUBLE, 
	strengths JSON, 
	note TEXT NOT NULL, 
	revision BIGINT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, no_bound JSON, 
	CONSTRAINT pk_ceilings PRIMARY KEY (tenant)
);
INSERT INTO "ceilings" VALUES('acme',1073741824,0,3.0,NULL,NULL,3600.0,'["soft"]','by contract',1,1.79535681454291605949e+09,1.79535681454291605949e+09,'["max_store_rate_bytes"]');
CREATE TABLE events (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	node VARCHAR(128) NOT NULL, 
	fields JSON NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (id)
);
INSERT INTO "events" VALUES(1,1.79535681143332910537e+09,'replica.leading','','{"replica": "e472c88d172bd0f0", "host": "vm", "pid": 4971}');
INSERT INTO "events" VALUES(2,1.79535681185955023767e+09,'node.joined','node-a','{"epoch": "a848832eaf334e70", "pid": 4971, "release": "0"}');
INSERT INTO "events" VALUES(3,1.79535681284477615358e+09,'tokenizer.create','','{"name": "words"}');
INSERT INTO "events" VALUES(4,1.79535681291134738921e+09,'quota.changed','','{"name": "acme", "action": "create", "generation": 1}');
INSERT INTO "events" VALUES(5,1.79535681297701048848e+09,'quota.changed','','{"name": "acme", "action": "update", "generation": 2}');
INSERT INTO "events" VALUES(6,1.79535681301361298555e+09,'quota.changed','','{"name": "_default", "action": "create", "generation": 3}');
INSERT INTO "events" VALUES(7,1.79535681303796863556e+09,'quota.changed','','{"name": "zoned", "action": "create", "generation": 4}');
INSERT INTO "events" VALUES(8,1.79535681306802129744e+09,'quota.changed','','{"name": "gone", "action": "create", "generation": 5}');
INSERT INTO "events" VALUES(9,1.79535681310092449193e+09,'quota.changed','','{"name": "gone", "action": "delete", "generation": 6}');
INSERT INTO "events" VALUES(10,1.79535681316909074786e+09,'pin.changed','','{"name": "soft-host", "action": "create", "generation": 1}');
INSERT INTO "events" VALUES(11,1.79535681323649168013e+09,'pin.changed','','{"name": "soft-gpu", "action": "create", "generation": 2}');
INSERT INTO "events" VALUES(12,1.79535681327921366689e+09,'pin.changed','','{"name": "guaranteed-host", "action": "create", "generation": 3}');
INSERT INTO "events" VALUES(13,1.79535681333162045478e+09,'pin.changed','','{"name": "guaranteed-gpu", "action": "create", "generation": 4}');
INSERT INTO "events" VALUES(14,1.79535681340563678743e+09,'pin.changed','','{"name": "permanent-host", "action": "create", "generation": 5}');
INSERT INTO "events" VALUES(15,1.79535681346057891848e+09,'pin.changed','','{"name": "permanent-gpu", "action": "create", "generation": 6}');
INSERT INTO "events" VALUES(16,1.79535681356956124303e+09,'pin.changed','','{"name": "refreshed", "action": "create", "generation": 7}');
INSERT INTO "events" VALUES(17,1.7953568136141064167e+09,'pin.changed','','{"name": "ends", "action": "create", "generation": 8}');
INSERT INTO "events" VALUES(18,1.79535681365302562714e+09,'pin.changed','','{"name": "by-keys", "action": "create", "generation": 9}');
INSERT INTO "events" VALUES(19,1.79535681441091871267e+09,'pin.changed','','{"name": "by-text", "action": "create", "generation": 10}');
INSERT INTO "events" VALUES(20,1.79535681446807408338e+09,'policy.changed','','{"name": "default", "action": "create", "generation": 1}');
INSERT INTO "events" VALUES(21,1.79535681450557184218e+09,'policy.changed','','{"name": "zone-b", "action": "create", "generation": 2}');
INSERT INTO "events" VALUES(22,1.79535681454291605949e+09,'ceiling.create','','{"name": "acme"}');
INSERT INTO "events" VALUES(23,1.79535681456433868401e+09,'rate.create','','{"name": "llama"}');
INSERT INTO "events" VALUES(24,1.79535681460729670527e+09,'rate.create','','{"name": "llama-one-space"}');
INSERT INTO "events" VALUES(25,1.79535681461853766438e+09,'token.create','','{"name": "viewer"}');
INSERT INTO "events" VALUES(26,1795356814.63998,'token.create','','{"name": "operator"}');
INSERT INTO "events" VALUES(27,1.79535681465219140056e+09,'token.create','','{"name": "admin-of-the-night"}');
INSERT INTO "events" VALUES(28,1.79535681472235083581e+09,'session.login','','{"name": "operator"}');
INSERT INTO "events" VALUES(29,1.79535681474924206733e+09,'session.login','','{"name": "admin-of-the-night"}');
INSERT INTO "events" VALUES(30,1.79535681477200341222e+09,'join_token.create','','{"name": "1275537434dbff49"}');
INSERT INTO "events" VALUES(31,1.7953568148070566654e+09,'node.join','','{"name": "node-b"}');
INSERT INTO "events" VALUES(32,1.79535681485861301417e+09,'node.label','','{"name": "node-a"}');
INSERT INTO "events" VALUES(33,1.79535681488901066775e+09,'node.resize','','{"name": "node-a"}');
INSERT INTO "events" VALUES(34,1795356814.9281,'node.drain','','{"name": "node-a"}');
INSERT INTO "events" VALUES(35,1.79535681496306824683e+09,'node.draining','node-a','{}');
INSERT INTO "events" VALUES(36,1.79535681499725365637e+09,'quota.changed','','{"name": "refused", "action": "create", "generation": 7}');
INSERT INTO "events" VALUES(37,1.79535681502274966237e+09,'push.nacked','node-a','{"type": "quotas", "generation": 7, "reason": "change", "faults": [{"path": "quotas[0].limit_bytes", "code": "bad_field", "message": "more than there is"}]}');
INSERT INTO "events" VALUES(38,1.79535681592656922345e+09,'node.lost','node-b','{}');
INSERT INTO "events" VALUES(39,1.79535681594110584254e+09,'quota.changed','','{"name": "refused", "action": "update", "generation": 8}');
INSERT INTO "events" VALUES(40,1.79535681798142671581e+09,'node.draining','node-a','{}');
CREATE TABLE generations (
	type VARCHAR(128) NOT NULL, 
	generation BIGINT NOT NULL, 
	changed_at DOUBLE NOT NULL, 
	CONSTRAINT pk_generations PRIMARY KEY (type)
);
INSERT INTO "generations" VALUES('quotas',8,1.79535681594110584254e+09);
INSERT INTO "generations" VALUES('pins',10,1.79535681441091871267e+09);
INSERT INTO "generations" VALUES('policies',2,1.79535681450557184218e+09);
CREATE TABLE join_tokens (
	id VARCHAR(128) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	labels JSON, 
	uses_left BIGINT, 
	created_by VARCHAR(128) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	last_used_at DOUBLE, 
	CONSTRAINT pk_join_tokens PRIMARY KEY (id)
);
INSERT INTO "join_tokens" VALUES('1275537434dbff49','rack 7','e403a3caf7bbbdb24e7989dc961179995df0b7e662944cba17262cb4d761bc41','{"zone": "b"}',1,'admin',1.79535681477200341222e+09,NULL,1.7953568148070566654e+09);
CREATE TABLE nodes (
	name VARCHAR(128) NOT NULL, 
	control_url TEXT NOT NULL, 
	events_url TEXT NOT NULL, 
	epoch VARCHAR(128) NOT NULL, 
	pid BIGINT NOT NULL, 
	release VARCHAR(128) NOT NULL, 
	engine_socket TEXT NOT NULL, 
	capacity_bytes BIGINT NOT NULL, 
	first_seen_at DOUBLE NOT NULL, 
	seen_at DOUBLE NOT NULL, wanted_capacity_bytes BIGINT, told_labels JSON, labels JSON, draining BOOLEAN DEFAULT 0 NOT NULL, public_key VARCHAR(128) DEFAULT '' NOT NULL, joined_by VARCHAR(128) DEFAULT '' NOT NULL, 
	CONSTRAINT pk_nodes PRIMARY KEY (name)
);
INSERT INTO "nodes" VALUES('node-a','ipc:///tmp/larder/control.sock','ipc:///tmp/larder/events.sock','a848832eaf334e70',4971,'0','/nowhere',2147483648,1.79535681186440944671e+09,1.79535681589506578448e+09,2147483648,NULL,'{"zone": "a"}',1,'','');
INSERT INTO "nodes" VALUES('node-b','tcp://127.0.0.1:9','tcp://127.0.0.1:10','',0,'0','',0,1.7953568148070566654e+09,1.7953568148070566654e+09,NULL,'{"rack": "7"}','{"zone": "b"}',0,'kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk','1275537434dbff49');
CREATE TABLE observations (
	node VARCHAR(128) NOT NULL, 
	type VARCHAR(128) NOT NULL, 
	store VARCHAR(128) NOT NULL, 
	generation BIGINT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	nacked_generation BIGINT, 
	nacked_at DOUBLE, 
	faults JSON, 
	updated_at DOUBLE NOT NULL, 
	CONSTRAINT pk_observations PRIMARY KEY (node, type), 
	CONSTRAINT fk_observations_node_nodes FOREIGN KEY(node) REFERENCES nodes (name) ON DELETE CASCADE
);
INSERT INTO "observations" VALUES('node-a','pins','3e5f464334cd458a982b45bce80777b4',10,'1f352df1a38173e93344b7c264036a32fa5c450db326a5d1334db5d4f4279758',NULL,NULL,NULL,1.79535681445426630975e+09);
INSERT INTO "observations" VALUES('node-a','quotas','3e5f464334cd458a982b45bce80777b4',8,'714b0713794817e2544e972c05a0e7656ddf44819fd71015601a49a7244ea865',NULL,NULL,NULL,1.79535681598016285892e+09);
INSERT INTO "observations" VALUES('node-a','policies','3e5f464334cd458a982b45bce80777b4',2,'bd0d857128994d15476cb3a15ea9d4983c3d39d5a3ee579d6a8380fdec4b5f38',NULL,NULL,NULL,1.79535681453057646746e+09);
CREATE TABLE pin_bodies (
	digest VARCHAR(64) NOT NULL, 
	body BLOB NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_pin_bodies PRIMARY KEY (digest)
);
INSERT INTO "pin_bodies" VALUES('26d6a7a7f1336616856f90198297a55556e1dde0dad886cbb1101300554d62eb',X'2A1014C42C13263414B4651775AA916E79A80664D589F38798BB877683F4B34C710D3B44FE4DC0383207815910E320FC084E89DF3887CE9F47AB2787C8547DB2',1.79535681316909074786e+09);
INSERT INTO "pin_bodies" VALUES('681a5afd2f2058ecd4c497cea06684377a99b477824b878cc83c66cea8beaa83',X'410D5C7C09706D7AAF0DBAF110764453567BFCBDFA7D57B508ACD9B7CF446DE24DACAFC2964C17024C70076DB6DFC43EDC69E274F557CCA9EFD69F3737FCD4C4',1.79535681356956124303e+09);
INSERT INTO "pin_bodies" VALUES('6036c41849da9c076ed79654d434017387a88fb833c2856b32e18218b3341c5f',X'6E340B9CFFB37A989CA544E6BB780A2C78901D3FB33738768511A30617AFA01D4BF5122F344554C53BDE2EBB8CD2B7E3D1600AD631C385A5D7CCE23C7785459ADBC1B4C900FFE48D575B5DA5C638040125F65DB0FE3E24494B76EA986457D986',1.79535681365302562714e+09);
INSERT INTO "pin_bodies" VALUES('727a93a4a45306f682fe99955c9ce6f710a69bee02150aa1a6597415c3d805c6',X'0CE8CC642BC5C70912165BFC2B55F03E99858F9336DC24389DC12281B1222F97335625E7F092D193C76E8B3802E0512ABF1C989A53B3D1DECCE218BFBF0B5975',1.79535681441091871267e+09);
CREATE TABLE pins (
	name VARCHAR(128) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	strength VARCHAR(128) NOT NULL, 
	key_count BIGINT NOT NULL, 
	keys_digest VARCHAR(64) NOT NULL, 
	expires_at DOUBLE, 
	note TEXT NOT NULL, 
	generation BIGINT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, refresh_s DOUBLE, managed_by VARCHAR(128) DEFAULT '' NOT NULL, selector JSON, owner VARCHAR(128) DEFAULT '' NOT NULL, origin JSON, tier VARCHAR(128) DEFAULT 'host' NOT NULL, 
	CONSTRAINT pk_pins PRIMARY KEY (name), 
	CONSTRAINT fk_pins_keys_digest_pin_bodies FOREIGN KEY(keys_digest) REFERENCES pin_bodies (digest)
);
INSERT INTO "pins" VALUES('soft-host','llama','acme','soft',2,'26d6a7a7f1336616856f90198297a55556e1dde0dad886cbb1101300554d62eb',NULL,'soft on host',1,1.79535681316909074786e+09,1.79535681316909074786e+09,NULL,'',NULL,'admin','{"source": "tokens", "tokens": 8, "chunk_tokens": 4}','host');
INSERT INTO "pins" VALUES('soft-gpu','llama','acme','soft',2,'26d6a7a7f1336616856f90198297a55556e1dde0dad886cbb1101300554d62eb',NULL,'soft on gpu',2,1.79535681323649168013e+09,1.79535681323649168013e+09,NULL,'',NULL,'admin','{"source": "tokens", "tokens": 8, "chunk_tokens": 4}','gpu');
INSERT INTO "pins" VALUES('guaranteed-host','llama','acme','guaranteed',2,'26d6a7a7f1336616856f90198297a55556e1dde0dad886cbb1101300554d62eb',NULL,'guaranteed on host',3,1.79535681327921366689e+09,1.79535681327921366689e+09,NULL,'',NULL,'admin','{"source": "tokens", "tokens": 8, "chunk_tokens": 4}','host');
INSERT INTO "pins" VALUES('guaranteed-gpu','llama','acme','guaranteed',2,'26d6a7a7f1336616856f90198297a55556e1dde0dad886cbb1101300554d62eb',NULL,'guaranteed on gpu',4,1.79535681333162045478e+09,1.79535681333162045478e+09,NULL,'',NULL,'admin','{"source": "tokens", "tokens": 8, "chunk_tokens": 4}','gpu');
INSERT INTO "pins" VALUES('permanent-host','llama','acme','permanent',2,'26d6a7a7f1336616856f90198297a55556e1dde0dad886cbb1101300554d62eb',NULL,'permanent on host',5,1.79535681340563678743e+09,1.79535681340563678743e+09,NULL,'',NULL,'admin','{"source": "tokens", "tokens": 8, "chunk_tokens": 4}','host');
INSERT INTO "pins" VALUES('permanent-gpu','llama','acme','permanent',2,'26d6a7a7f1336616856f90198297a55556e1dde0dad886cbb1101300554d62eb',NULL,'permanent on gpu',6,1.79535681346057891848e+09,1.79535681346057891848e+09,NULL,'',NULL,'admin','{"source": "tokens", "tokens": 8, "chunk_tokens": 4}','gpu');
INSERT INTO "pins" VALUES('refreshed','llama','','guaranteed',2,'681a5afd2f2058ecd4c497cea06684377a99b477824b878cc83c66cea8beaa83',2.09775681354611396797e+09,'',7,1.79535681356956124303e+09,1.79535681356956124303e+09,302400000.0,'',NULL,'admin','{"source": "tokens", "tokens": 8, "chunk_tokens": 4}','host');
INSERT INTO "pins" VALUES('ends','llama','','guaranteed',2,'681a5afd2f2058ecd4c497cea06684377a99b477824b878cc83c66cea8beaa83',2100000000.0,'',8,1.7953568136141064167e+09,1.7953568136141064167e+09,NULL,'','{"zone": "b"}','admin','{"source": "tokens", "tokens": 8, "chunk_tokens": 4}','host');
INSERT INTO "pins" VALUES('by-keys','llama','','guaranteed',3,'6036c41849da9c076ed79654d434017387a88fb833c2856b32e18218b3341c5f',NULL,'',9,1.79535681365302562714e+09,1.79535681365302562714e+09,NULL,'fleet-repo',NULL,'admin','{"source": "keys"}','host');
INSERT INTO "pins" VALUES('by-text','llama','','guaranteed',2,'727a93a4a45306f682fe99955c9ce6f710a69bee02150aa1a6597415c3d805c6',NULL,'',10,1.79535681441091871267e+09,1.79535681441091871267e+09,NULL,'',NULL,'admin','{"source": "text", "tokens": 4, "chunk_tokens": 2, "tokenizer": {"name": "words", "digest": "225c9964ad84cbf1c0cf6ebf98c8244db059282347371157141a95a127f9776c"}}','host');
CREATE TABLE policies (
	name VARCHAR(128) NOT NULL, 
	algorithm VARCHAR(128) NOT NULL, 
	admission BOOLEAN NOT NULL, 
	admission_idle_s DOUBLE NOT NULL, 
	high_watermark DOUBLE NOT NULL, 
	low_watermark DOUBLE NOT NULL, 
	note TEXT NOT NULL, 
	generation BIGINT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, managed_by VARCHAR(128) DEFAULT '' NOT NULL, selector JSON, priority BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_policies PRIMARY KEY (name)
);
INSERT INTO "policies" VALUES('default','s3fifo',1,60.0,0.9,0.8,'all',1,1.79535681446807408338e+09,1.79535681446807408338e+09,'',NULL,0);
INSERT INTO "policies" VALUES('zone-b','lfu',0,240.0,1.0,1.0,'',2,1.79535681450557184218e+09,1.79535681450557184218e+09,'','{"zone": "b"}',7);
CREATE TABLE pushes (
	id INTEGER NOT NULL, 
	type VARCHAR(128) NOT NULL, 
	node VARCHAR(128) NOT NULL, 
	generation BIGINT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	state VARCHAR(128) NOT NULL, 
	reason VARCHAR(128) NOT NULL, 
	attempt BIGINT NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	bodies BIGINT NOT NULL, 
	sent_at DOUBLE NOT NULL, 
	answered_at DOUBLE, 
	applied_s DOUBLE, 
	faults JSON NOT NULL, 
	CONSTRAINT pk_pushes PRIMARY KEY (id)
);
INSERT INTO "pushes" VALUES(1,'quotas','node-a',0,'9e076ceaf246b6003d9c2680a2b4cf0bffd069805902b0b5edeebf49039fe4bd','acked','joined',1,1,0,1.79535681190378856655e+09,1.79535681190777158741e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(2,'pins','node-a',0,'9e076ceaf246b6003d9c2680a2b4cf0bffd069805902b0b5edeebf49039fe4bd','acked','joined',1,1,0,1.79535681190829372409e+09,1.79535681191015458104e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(3,'policies','node-a',0,'9e076ceaf246b6003d9c2680a2b4cf0bffd069805902b0b5edeebf49039fe4bd','acked','joined',1,1,0,1.79535681191056609154e+09,1.79535681191465473173e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(4,'quotas','node-a',1,'866ab26ddf3049e84f9ca39b3ec5629b18d654e468f65211cf0b1b0f1805c396','acked','change',1,138,0,1.79535681294039750101e+09,1.7953568129414010048e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(5,'quotas','node-a',2,'93a95e7a8d6d96c445978ef1230fd428c606c11ccf400319a491a5aed407e1a3','acked','change',1,138,0,1.79535681298777747153e+09,1.79535681298870038982e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(6,'quotas','node-a',3,'b3f796049c5e21ebfce6b8ffa09e4ac5f03412110d94fa16fc269823cc51408b','acked','change',1,197,0,1.79535681302054357525e+09,1.79535681302148938183e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(7,'quotas','node-a',4,'b3f796049c5e21ebfce6b8ffa09e4ac5f03412110d94fa16fc269823cc51408b','acked','change',1,197,0,1.79535681304593491554e+09,1.79535681304701066019e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(8,'quotas','node-a',5,'7ed25e1d4d430a0ac7a61db42823c2e9496faf04f96cfdcead2af3f9fc58c0e1','acked','change',1,273,0,1.79535681307975482942e+09,1.79535681308139491085e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(9,'quotas','node-a',6,'b3f796049c5e21ebfce6b8ffa09e4ac5f03412110d94fa16fc269823cc51408b','acked','change',1,197,0,1.79535681312213420872e+09,1.7953568131234540939e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(10,'pins','node-a',1,'ffda3bcfe1697d9335fad20497a8e289137ead2b16253c49deb44ed0c39de579','acked','change',1,133,1,1.79535681320120739934e+09,1.79535681320477271075e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(11,'pins','node-a',2,'75715956dbddc3266a9a98b17c358aba769349a33898b8f7b6abff2ffadc75b9','acked','change',1,273,0,1.79535681325215601923e+09,1.79535681325291109088e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(12,'pins','node-a',3,'0ae011883bd1f4eb8f8c3cb8136900e06e552e620cf9731f43389adf9c298408','acked','change',1,417,0,1.79535681329528069493e+09,1.79535681329604220393e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(13,'pins','node-a',4,'814e8c929535ea9caf70066fdb6aa120766e763b768eaa594f3486db23e54bbd','acked','change',1,569,0,1.79535681335091304782e+09,1.79535681335212588308e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(14,'pins','node-a',5,'8ffb1dd7444e0c53745bd36edf9d6ca4f3f94a07215d1b0e9dfdb8cc5b420f22','acked','change',1,711,0,1.79535681342269062997e+09,1.7953568134238722324e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(15,'pins','node-a',6,'fce31ea0d990a263f0f9634f95640290521a803ca306eff59c9dd8ff40c8064c','acked','change',1,861,0,1.79535681350737118724e+09,1.79535681351157045361e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(16,'pins','node-a',7,'514371b3dc0652b1e904fa1cda832595d71d052d71ee1d7d31e168c62fae7432','acked','change',1,1034,1,1.79535681358283662799e+09,1.79535681358757758137e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(17,'pins','node-a',8,'514371b3dc0652b1e904fa1cda832595d71d052d71ee1d7d31e168c62fae7432','acked','change',1,1034,0,1.79535681362531828885e+09,1.79535681362670874591e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(18,'pins','node-a',9,'81c34567f354ed7706757e78706ebb563ffc8afad4fd77d8acf40fa484ab1c64','acked','change',1,1166,1,1.79535681366436386105e+09,1.79535681366871976852e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(19,'pins','node-a',10,'1f352df1a38173e93344b7c264036a32fa5c450db326a5d1334db5d4f4279758','acked','change',1,1298,1,1.79535681443673706056e+09,1.79535681444268393515e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(20,'policies','node-a',1,'bd0d857128994d15476cb3a15ea9d4983c3d39d5a3ee579d6a8380fdec4b5f38','acked','change',1,116,0,1.79535681448213505742e+09,1.79535681448327517507e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(21,'policies','node-a',2,'bd0d857128994d15476cb3a15ea9d4983c3d39d5a3ee579d6a8380fdec4b5f38','acked','change',1,116,0,1.79535681451551318169e+09,1.79535681451656603819e+09,0.0,'[]');
INSERT INTO "pushes" VALUES(22,'quotas','node-a',7,'b1d9568287f38e2b6b4dbcc20864ed6aa911b32fd8d4fd20ca96f325a27c6aac','nacked','change',1,284,0,1.79535681501709747315e+09,1.79535681501820826525e+09,NULL,'[{"path": "quotas[0].limit_bytes", "code": "bad_field", "message": "more than there is"}]');
INSERT INTO "pushes" VALUES(23,'quotas','node-a',8,'714b0713794817e2544e972c05a0e7656ddf44819fd71015601a49a7244ea865','acked','change',1,280,0,1.79535681597311949728e+09,1.79535681597399187085e+09,0.0,'[]');
CREATE TABLE quotas (
	tenant VARCHAR(128) NOT NULL, 
	limit_bytes BIGINT, 
	note TEXT NOT NULL, 
	generation BIGINT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, floor_bytes BIGINT DEFAULT '0' NOT NULL, weight DOUBLE DEFAULT '1' NOT NULL, pin_budget_bytes BIGINT, store_rate_bytes BIGINT, on_exceed VARCHAR(128) DEFAULT 'evict_self' NOT NULL, mode VARCHAR(128) DEFAULT 'enforce' NOT NULL, managed_by VARCHAR(128) DEFAULT '' NOT NULL, selector JSON, 
	CONSTRAINT pk_quotas PRIMARY KEY (tenant)
);
INSERT INTO "quotas" VALUES('acme',536870912,'bought',2,1.79535681291134738921e+09,1.79535681297701048848e+09,16777216,2.5,8388608,1048576,'reject','enforce','fleet-repo',NULL);
INSERT INTO "quotas" VALUES('',NULL,'',3,1.79535681301361298555e+09,1.79535681301361298555e+09,0,0.5,NULL,NULL,'evict_self','observe','',NULL);
INSERT INTO "quotas" VALUES('zoned',4096,'',4,1.79535681303796863556e+09,1.79535681303796863556e+09,0,1.0,NULL,NULL,'evict_self','enforce','','{"zone": "b"}');
INSERT INTO "quotas" VALUES('refused',1048576,'',8,1.79535681499725365637e+09,1.79535681594110584254e+09,0,1.0,NULL,NULL,'evict_self','enforce','',NULL);
CREATE TABLE rates (
	name VARCHAR(128) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	space VARCHAR(128) DEFAULT '' NOT NULL, 
	prefill_tokens_per_s DOUBLE NOT NULL, 
	note TEXT NOT NULL, 
	revision BIGINT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, 
	CONSTRAINT pk_rates PRIMARY KEY (name)
);
INSERT INTO "rates" VALUES('llama','llama','',1000.0,'measured',1,1.79535681456433868401e+09,1.79535681456433868401e+09);
INSERT INTO "rates" VALUES('llama-one-space','llama','ffffffffffffffffffffffffffffffff',500.0,'',1,1.79535681460729670527e+09,1.79535681460729670527e+09);
CREATE TABLE replicas (
	id VARCHAR(128) NOT NULL, 
	host VARCHAR(128) NOT NULL, 
	pid BIGINT NOT NULL, 
	url TEXT NOT NULL, 
	pushing BOOLEAN NOT NULL, 
	started_at DOUBLE NOT NULL, 
	seen_at DOUBLE NOT NULL, 
	CONSTRAINT pk_replicas PRIMARY KEY (id)
);
INSERT INTO "replicas" VALUES('e472c88d172bd0f0','vm',4971,'',1,1.79535680938120675081e+09,2100000000.0);
CREATE TABLE sessions (
	hash VARCHAR(64) NOT NULL, 
	token_id VARCHAR(128), 
	configured VARCHAR(128) DEFAULT '' NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	source VARCHAR(128) DEFAULT '' NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (hash), 
	CONSTRAINT fk_sessions_token_id_tokens FOREIGN KEY(token_id) REFERENCES tokens (id) ON DELETE CASCADE
);
INSERT INTO "sessions" VALUES('817de8dcd0ff7e0a573efa33d743f7cb31ff1754e8e678b8c97fb176f3ada017','7883e3967f60','',1.79535681472201037408e+09,2100000000.0,'127.0.0.1');
INSERT INTO "sessions" VALUES('b9f5ea6560e0a1631db224cf01375a9353a375a1d0108010232361e13406257a','67500e02091c','',1.79535681474896025664e+09,2100000000.0,'127.0.0.1');
CREATE TABLE store (
	id VARCHAR(32) NOT NULL, 
	created_at DOUBLE NOT NULL, secret VARCHAR(64) DEFAULT '' NOT NULL, 
	CONSTRAINT pk_store PRIMARY KEY (id)
);
INSERT INTO "store" VALUES('3e5f464334cd458a982b45bce80777b4',1.79535681111907124518e+09,'bdb35c3abee09817cafcf9ca7dcaea9947d94ad0650a90c23fd963c3143c8610');
CREATE TABLE tokenizers (
	name VARCHAR(128) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	file BLOB NOT NULL, 
	chat_template TEXT, 
	special_tokens JSON, 
	add_special_tokens BOOLEAN NOT NULL, 
	note TEXT NOT NULL, 
	revision BIGINT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, 
	CONSTRAINT pk_tokenizers PRIMARY KEY (name), 
	CONSTRAINT uq_tokenizers_model UNIQUE (model)
);
INSERT INTO "tokenizers" VALUES('words','llama','225c9964ad84cbf1c0cf6ebf98c8244db059282347371157141a95a127f9776c',X'7B2276657273696F6E223A22312E30222C227472756E636174696F6E223A6E756C6C2C2270616464696E67223A6E756C6C2C2261646465645F746F6B656E73223A5B5D2C226E6F726D616C697A6572223A6E756C6C2C227072655F746F6B656E697A6572223A7B2274797065223A225768697465737061636553706C6974227D2C22706F73745F70726F636573736F72223A6E756C6C2C226465636F646572223A6E756C6C2C226D6F64656C223A7B2274797065223A22576F72644C6576656C222C22766F636162223A7B227730223A302C227731223A312C227732223A322C227733223A332C227734223A342C227735223A352C227736223A362C227737223A372C227738223A382C227739223A392C22773130223A31302C22773131223A31312C22773132223A31322C22773133223A31332C22773134223A31342C22773135223A31352C223C756E6B3E223A31367D2C22756E6B5F746F6B656E223A223C756E6B3E227D7D','{{ messages[0][''content''] }}','{"bos_token": "<s>"}',0,'w0 to w15',1,1.79535681284477615358e+09,1.79535681284477615358e+09);
CREATE TABLE tokens (
	id VARCHAR(128) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	role VARCHAR(128) NOT NULL, 
	tenants JSON, 
	hash VARCHAR(64) NOT NULL, 
	created_by VARCHAR(128) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	last_used_at DOUBLE, 
	last_used_from VARCHAR(128) DEFAULT '' NOT NULL, 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT uq_tokens_name UNIQUE (name)
);
INSERT INTO "tokens" VALUES('ffddc154da07','viewer','viewer',NULL,'9836a27d78de134a0412fddd91ad0d08fcfa72b6ca4c67f21373b1b90f8e2ca2','admin',1.79535681461813426021e+09,NULL,1.79535681466325330738e+09,'127.0.0.1');
INSERT INTO "tokens" VALUES('7883e3967f60','operator','operator','["acme"]','0857c249ae55c1c479ab678387df4f72bb1a7cb118199ec9e66c3254313e63f8','admin',1.7953568146395153999e+09,NULL,1.79535681474411821364e+09,'127.0.0.1');
INSERT INTO "tokens" VALUES('67500e02091c','admin-of-the-night','admin',NULL,'fe33fa524fad2ee660a5ed4c1428e87828bffd2f040ea52621261b58d208c66c','admin',1.7953568146519122123e+09,2100000000.0,1.79535681474890065198e+09,'127.0.0.1');
CREATE TABLE usage (
	hour BIGINT NOT NULL, 
	node VARCHAR(128) NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	space VARCHAR(128) NOT NULL, 
	held_kib_s BIGINT DEFAULT '0' NOT NULL, 
	requested_tokens BIGINT DEFAULT '0' NOT NULL, 
	served_tokens BIGINT DEFAULT '0' NOT NULL, 
	stored_blocks BIGINT DEFAULT '0' NOT NULL, 
	stored_bytes BIGINT DEFAULT '0' NOT NULL, 
	evicted_blocks BIGINT DEFAULT '0' NOT NULL, 
	evicted_bytes BIGINT DEFAULT '0' NOT NULL, 
	refused_blocks BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_usage PRIMARY KEY (hour, node, tenant, model, space)
);
INSERT INTO "usage" VALUES(1795356000,'node-a','acme','llama','ffffffffffffffffffffffffffffffff',7200,512,256,4,4096,1,1024,3);
CREATE TABLE usage_marks (
	node VARCHAR(128) NOT NULL, 
	tenant VARCHAR(128) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	space VARCHAR(128) NOT NULL, 
	epoch VARCHAR(128) NOT NULL, 
	number BIGINT NOT NULL, 
	at DOUBLE NOT NULL, 
	held_kib_s BIGINT NOT NULL, 
	requested_tokens BIGINT NOT NULL, 
	served_tokens BIGINT NOT NULL, 
	stored_blocks BIGINT NOT NULL, 
	stored_bytes BIGINT NOT NULL, 
	evicted_blocks BIGINT NOT NULL, 
	evicted_bytes BIGINT NOT NULL, 
	refused_blocks BIGINT NOT NULL, 
	CONSTRAINT pk_usage_marks PRIMARY KEY (node, tenant, model, space)
);
INSERT INTO "usage_marks" VALUES('node-a','acme','llama','ffffffffffffffffffffffffffffffff','a848832eaf334e70',1,1.79535681597928500168e+09,7200,512,256,4,4096,1,1024,3);
CREATE INDEX ix_pushes_node_type ON pushes (node, type);
CREATE INDEX ix_pins_keys_digest ON pins (keys_digest);
CREATE INDEX ix_sessions_token_id ON sessions (token_id);
CREATE INDEX ix_events_at ON events (at);
COMMIT;
