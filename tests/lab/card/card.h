/* SPDX-License-Identifier: MIT OR GPL-2.0 */
#ifndef HEDDLE_CARD_H
#define HEDDLE_CARD_H
#include <linux/etherdevice.h>
#include <linux/netdevice.h>
#include <linux/seq_file.h>
#include <net/flow_dissector.h>
#include <net/flow_offload.h>

struct card_key {
	struct flow_dissector_key_control control;
	struct flow_dissector_key_basic basic;
	struct flow_dissector_key_eth_addrs eth;
	struct flow_dissector_key_vlan vlan, cvlan;
	struct flow_dissector_key_ipv4_addrs ipv4;
	struct flow_dissector_key_ipv6_addrs ipv6;
	struct flow_dissector_key_ports ports;
	struct flow_dissector_key_tcp tcp;
	struct flow_dissector_key_ip ip;
	struct flow_dissector_key_icmp icmp;
	struct flow_dissector_key_arp arp;
	struct flow_dissector_key_mpls mpls;
	struct flow_dissector_key_num_of_vlans vlans;
} __aligned(sizeof(u32));

/* One pair of devices; or a tunnel device with an indirect block, without `end`. */
struct port {
	struct net_device *dev, *end;
	struct list_head masks;
	uint number;
};
struct end {
	struct port *port;
	bool outside;
};
struct mask {
	struct list_head list;
	struct rcu_head rcu;
	struct card_key key;
	u32 chain, filters;
};
struct op {
	u8 id;
	union {
		struct port *port;
		u32 chain;
		struct { u16 vid; __be16 proto; u8 prio; } vlan;
		struct { u8 base; u32 offset, mask, value; } mangle;
	};
};
struct filter {
	struct hlist_node by_key, by_cookie;
	struct rcu_head rcu;
	struct port *port;
	struct mask *mask;
	struct card_key key;
	unsigned long cookie;
	u32 prio;
	__be16 protocol;
	bool soft;
	u64 used;
	atomic64_t packets, bytes;
	unsigned long last_used, read_at;
	u64 seen_packets, seen_bytes, told_packets, told_bytes;
	unsigned int op_count;
	struct op ops[];
};

enum { ADDED, DELETED, FULL, BAD_KEY, BAD_ACTION, HITS, MISSES, CHAIN_MISSES, SOFT_HITS, LIES, STATS_READ, BINDS, INDIRECT_BINDS,
       UDP_PORTS, COUNTERS };

void card_count(int which);
/* Records a line with the time. The caller holds the table's lock or RTNL. */
__printf(1, 2) void card_event(const char *format, ...);
/* The card's pair of this switchdev port; NULL: a device of another driver. */
struct port *card_port_of(const struct net_device *dev);

void card_rules_init(void);
/* Reads the keys of a rule into the filter, and its mask. An error is explained in `extack`. */
int card_read_keys(struct flow_rule *rule, struct filter *f, struct card_key *mask, struct netlink_ext_ack *extack);
int card_read_actions(struct flow_rule *rule, struct filter *f, struct netlink_ext_ack *extack);
void card_masked(struct card_key *out, const struct card_key *key, const struct card_key *mask);
void card_dissect(struct sk_buff *skb, struct card_key *key);
void card_show_rule(struct seq_file *s, const struct filter *f);

/* A request of tc about a filter. */
int card_table_command(struct port *port, struct flow_cls_offload *c);
void card_table_size(uint *now, uint *peak);
void card_table_show(struct seq_file *s);
int card_setup_tc(struct net_device *dev, enum tc_setup_type type, void *data);
int card_setup_indirect(struct net_device *dev, struct Qdisc *sch, void *private, enum tc_setup_type type, void *type_data,
			void *data, void (*cleanup)(struct flow_block_cb *block));
void card_release_tunnel(void *private);
/* The filter of this chain with the lowest priority number that the frame matches. Under RCU. */
struct filter *card_lookup(struct port *port, struct sk_buff *skb, u32 chain);

netdev_tx_t card_transmit(struct sk_buff *skb, struct net_device *dev);

/* Sets what the helpers of the kernel expect of a frame whose data begins with its Ethernet header. */
static inline void settle(struct sk_buff *skb)
{
	skb_reset_mac_header(skb);
	skb->protocol = eth_hdr(skb)->h_proto;
	skb_set_network_header(skb, ETH_HLEN);
	skb->mac_len = ETH_HLEN;
}
#endif
