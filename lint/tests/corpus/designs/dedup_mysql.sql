SET NAMES utf8mb4;

CREATE TABLE `idempotency_keys` (
  `id` int unsigned NOT NULL AUTO_INCREMENT,
  `idempotency_key` varchar(255) NOT NULL,
  `user_id` int NOT NULL,
  `response_code` int DEFAULT NULL,
  `response_body` mediumtext,
  `created_at` datetime NOT NULL DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (`id`),
  KEY `key_idx` (`idempotency_key`)
) ENGINE=InnoDB;

CREATE TABLE `message_dedup` (
  `id` bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
  `msg_id` varchar(191) NOT NULL,
  `consumer_group` varchar(64) NOT NULL,
  `created_at` timestamp DEFAULT CURRENT_TIMESTAMP,
  UNIQUE KEY `uk_msg` (`consumer_group`, `msg_id`(120))
) ENGINE=InnoDB COMMENT='one row; for each message';

CREATE TABLE `consumed_messages` (
  `message_id` varchar(64) NOT NULL COMMENT 'of the producer (never the broker''s)',
  `consumed_at` datetime NOT NULL,
  PRIMARY KEY (`message_id`)
);
