// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * heddle_card: a network card that takes tc flower filters, for tests. Pure software, never shipped.
 *
 * The card has pairs of devices, as veth has. The first pair is the uplink: `up0` is its switchdev
 * port, and `wire0` is the wire. Every other pair is a virtual function: `repN` is its representor, and
 * `vfN` is the device of the guest or pod. Frames sent by `wire0` or `vfN` meet the card's own table
 * first. The switchdev port of the pair receives frames that no filter takes. Frames sent by `up0` or
 * `repN` leave by the other device of the pair.
 *
 * Executed exactly: the keys in `keys[]` under any mask, chains, priorities, and the actions in
 * `hard_actions[]`. Redirection is to ports of this card only.
 * Accepted and not executed: the keys in `soft_keys[]` (connection state, tunnel) and the actions in
 * `soft_actions[]` (ct, tunnel_key, police, sample, MPLS). The switchdev port receives a frame that
 * meets such a filter, unchanged, and software tc has the same filter. The filter is `in_hw`, its
 * counter stays 0.
 * A frame that misses in a later chain is received unchanged, too, and no filter counts it. This kernel
 * has no NET_TC_SKB_EXT to continue in the middle.
 * Refused by name: everything else, for example redirection to a device of another driver.
 * Not emulated: encapsulation in the card, connections in the card (nf_flow_table), hardware meters,
 * devlink, bandwidth, DMA, reset.
 *
 * Parameters (writable in /sys/module/heddle_card/parameters) choose capacity, refusals, lateness and
 * lies.
 * Files in debugfs, directory heddle_card: `stats` has the counters, and `filters` the table. `events`
 * has the last events, with milliseconds since the module was loaded.
 */
#include <linux/debugfs.h>
#include <linux/ethtool.h>
#include <linux/module.h>
#include <net/pkt_cls.h>
#include <net/udp_tunnel.h>
#include "card.h"

#define MAX_PORTS 64
#define MAX_EVENTS 512
#define EVENT_BYTES 112

static uint vfs = 4;
module_param(vfs, uint, 0444);
MODULE_PARM_DESC(vfs, "virtual functions, up to 63");

static struct port *all[MAX_PORTS];
static uint port_count;
static struct dentry *directory;
static const char *const counter_names[] = { "added", "deleted", "refused_full", "refused_key", "refused_action", "hits", "misses",
	"chain_misses", "soft_hits", "lies", "stats_read", "binds", "indirect_binds", "udp_ports" };
static atomic64_t counters[COUNTERS];
void card_count(int which) { atomic64_inc(&counters[which]); }

static char events[MAX_EVENTS][EVENT_BYTES];
static uint event_count;
static ktime_t began;
void card_event(const char *format, ...)
{
	char *line = events[event_count++ % MAX_EVENTS];
	int n = scnprintf(line, EVENT_BYTES, "%lld ", ktime_ms_delta(ktime_get(), began));
	va_list args;

	va_start(args, format);
	vscnprintf(line + n, EVENT_BYTES - n, format, args);
	va_end(args);
}

struct port *card_port_of(const struct net_device *dev)
{
	for (uint i = 0; i < port_count; i++)
		if (all[i] && all[i]->dev == dev)
			return all[i];
	return NULL;
}

/* -- devices ------------------------------------------------------------------------------------------- */

static int set_port(struct net_device *dev, unsigned int table, unsigned int entry, struct udp_tunnel_info *info)
{
	card_count(UDP_PORTS);
	card_event("udp port %s %u type %u", dev->name, ntohs(info->port), info->type);
	return 0;
}

static int unset_port(struct net_device *dev, unsigned int table, unsigned int entry, struct udp_tunnel_info *info)
{
	card_event("udp port %s %u removed", dev->name, ntohs(info->port));
	return 0;
}

static const struct udp_tunnel_nic_info udp_ports = {
	.set_port = set_port,
	.unset_port = unset_port,
	.flags = UDP_TUNNEL_NIC_INFO_MAY_SLEEP | UDP_TUNNEL_NIC_INFO_OPEN_ONLY,
	.tables = { { .n_entries = 4, .tunnel_types = UDP_TUNNEL_TYPE_VXLAN | UDP_TUNNEL_TYPE_GENEVE } },
};

static int parent_id(struct net_device *dev, struct netdev_phys_item_id *id)
{
	id->id_len = 8;
	memcpy(id->id, "heddlecd", 8);
	return 0;
}

static int port_name(struct net_device *dev, char *name, size_t length)
{
	struct port *port = ((struct end *)netdev_priv(dev))->port;
	int n = port->number ? snprintf(name, length, "pf0vf%u", port->number - 1) : snprintf(name, length, "p0");

	return n < length ? 0 : -EOPNOTSUPP;
}

static const struct net_device_ops inner_ops = {
	.ndo_start_xmit = card_transmit, .ndo_setup_tc = card_setup_tc, .ndo_get_port_parent_id = parent_id,
	.ndo_get_phys_port_name = port_name, .ndo_set_mac_address = eth_mac_addr, .ndo_validate_addr = eth_validate_addr,
};
static const struct net_device_ops outer_ops = {
	.ndo_start_xmit = card_transmit, .ndo_set_mac_address = eth_mac_addr, .ndo_validate_addr = eth_validate_addr,
};

static int settings(struct net_device *dev, struct ethtool_link_ksettings *s)
{
	s->base.speed = SPEED_25000;
	s->base.duplex = DUPLEX_FULL;
	s->base.port = PORT_FIBRE;
	return 0;
}

static void driver(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, KBUILD_MODNAME, sizeof(info->driver));
}

static const struct ethtool_ops tool_ops = {
	.get_link = ethtool_op_get_link, .get_link_ksettings = settings, .get_drvinfo = driver,
};

static void prepare(struct net_device *dev)
{
	ether_setup(dev);
	eth_hw_addr_random(dev);
	dev->ethtool_ops = &tool_ops;
	dev->lltx = true;
	dev->max_mtu = ETH_MAX_MTU;
	dev->priv_flags |= IFF_LIVE_ADDR_CHANGE;
	dev->priv_flags &= ~IFF_TX_SKB_SHARING;
	dev->hw_features = NETIF_F_SG | NETIF_F_FRAGLIST | NETIF_F_HW_CSUM | NETIF_F_RXCSUM | NETIF_F_SCTP_CRC | NETIF_F_HIGHDMA |
			   NETIF_F_GSO_SOFTWARE | NETIF_F_GSO_ENCAP_ALL | NETIF_F_HW_VLAN_CTAG_TX | NETIF_F_HW_VLAN_CTAG_RX |
			   NETIF_F_HW_VLAN_STAG_TX | NETIF_F_HW_VLAN_STAG_RX;
	dev->features = dev->hw_features;
	dev->hw_enc_features = dev->hw_features;
	dev->vlan_features = dev->hw_features & ~(NETIF_F_HW_VLAN_CTAG_TX | NETIF_F_HW_VLAN_STAG_TX | NETIF_F_HW_VLAN_CTAG_RX |
						  NETIF_F_HW_VLAN_STAG_RX);
}

static struct net_device *add_device(struct port *port, const char *stem, bool outside)
{
	struct net_device *dev;
	char name[IFNAMSIZ];

	snprintf(name, sizeof(name), "%s%u", stem, port->number ? port->number - 1 : 0);
	dev = alloc_netdev(sizeof(struct end), name, NET_NAME_USER, prepare);
	if (!dev)
		return NULL;
	((struct end *)netdev_priv(dev))->port = port;
	((struct end *)netdev_priv(dev))->outside = outside;
	dev->netdev_ops = outside ? &outer_ops : &inner_ops;
	if (!outside) {
		dev->hw_features |= NETIF_F_HW_TC;
		dev->features |= NETIF_F_HW_TC;
		if (!port->number) {
			dev->udp_tunnel_nic_info = &udp_ports;
			dev->hw_features |= NETIF_F_RX_UDP_TUNNEL_PORT;
			dev->features |= NETIF_F_RX_UDP_TUNNEL_PORT;
		}
	}
	if (register_netdev(dev)) {
		free_netdev(dev);
		return NULL;
	}
	return dev;
}

static void remove_ports(void)
{
	for (uint i = 0; i < port_count; i++)
		for (int outer = 0; outer < 2; outer++)
			if (outer ? all[i]->dev : all[i]->end)
				unregister_netdev(outer ? all[i]->dev : all[i]->end);
	synchronize_rcu();
	for (uint i = 0; i < port_count; i++) {
		if (all[i]->dev)
			free_netdev(all[i]->dev);
		if (all[i]->end)
			free_netdev(all[i]->end);
		kfree(all[i]);
	}
}

/* -- debugfs ------------------------------------------------------------------------------------------- */

static int stats_show(struct seq_file *s, void *unused)
{
	uint now, peak;

	card_table_size(&now, &peak);
	seq_printf(s, "filters %u\npeak %u\n", now, peak);
	for (int i = 0; i < COUNTERS; i++)
		seq_printf(s, "%s %lld\n", counter_names[i], atomic64_read(&counters[i]));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static int filters_show(struct seq_file *s, void *unused)
{
	card_table_show(s);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(filters);

static int events_show(struct seq_file *s, void *unused)
{
	for (uint i = event_count > MAX_EVENTS ? event_count - MAX_EVENTS : 0; i < event_count; i++)
		seq_printf(s, "%s\n", events[i % MAX_EVENTS]);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(events);

static int __init card_init(void)
{
	int err = -ENOMEM;

	if (vfs >= MAX_PORTS)
		return -EINVAL;
	began = ktime_get();
	card_rules_init();
	for (; port_count <= vfs; port_count++) {
		struct port *port = kzalloc(sizeof(*port), GFP_KERNEL);

		if (!port)
			goto fail;
		all[port_count] = port;
		port->number = port_count;
		INIT_LIST_HEAD(&port->masks);
		port->dev = add_device(port, port_count ? "rep" : "up", false);
		port->end = port->dev ? add_device(port, port_count ? "vf" : "wire", true) : NULL;
		if (!port->end) {
			port_count++;
			goto fail;
		}
	}
	err = flow_indr_dev_register(card_setup_indirect, NULL);
	if (err)
		goto fail;
	directory = debugfs_create_dir(KBUILD_MODNAME, NULL);
	debugfs_create_file("stats", 0444, directory, NULL, &stats_fops);
	debugfs_create_file("filters", 0444, directory, NULL, &filters_fops);
	debugfs_create_file("events", 0444, directory, NULL, &events_fops);
	return 0;
fail:
	remove_ports();
	return err;
}

static void __exit card_exit(void)
{
	debugfs_remove(directory);
	flow_indr_dev_unregister(card_setup_indirect, NULL, card_release_tunnel);
	remove_ports();
	rcu_barrier();
}

module_init(card_init);
module_exit(card_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("a network card that takes tc flower filters, for tests");
