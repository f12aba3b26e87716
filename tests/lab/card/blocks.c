// SPDX-License-Identifier: MIT OR GPL-2.0
/* The test card's blocks: those of its own devices, and indirect ones of tunnel devices. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/delay.h>
#include <linux/module.h>
#include <net/geneve.h>
#include <net/gre.h>
#include <net/pkt_cls.h>
#include <net/vxlan.h>
#include "card.h"

static uint delay_ms;
module_param(delay_ms, uint, 0644);
MODULE_PARM_DESC(delay_ms, "time until the card answers a request to add or delete a filter");

static LIST_HEAD(blocks);
static LIST_HEAD(indirect_blocks);

static int block_call(enum tc_setup_type type, void *data, void *private)
{
	struct flow_cls_offload *c = data;
	struct port *port = private;

	if (type != TC_SETUP_CLSFLOWER)
		return -EOPNOTSUPP;
	if (port->end && c->command == FLOW_CLS_REPLACE && !tc_can_offload_extack(port->dev, c->common.extack))
		return -EOPNOTSUPP; /* hw-tc-offload is off */
	if (delay_ms && (c->command == FLOW_CLS_REPLACE || c->command == FLOW_CLS_DESTROY))
		msleep(delay_ms);
	return card_table_command(port, c);
}

static int setup_block(struct net_device *dev, struct flow_block_offload *f)
{
	struct port *port = ((struct end *)netdev_priv(dev))->port;
	struct flow_block_cb *block;

	if (f->binder_type != FLOW_BLOCK_BINDER_TYPE_CLSACT_INGRESS)
		return -EOPNOTSUPP;
	f->unlocked_driver_cb = true;
	f->driver_block_list = &blocks;
	if (f->command == FLOW_BLOCK_BIND) {
		if (flow_block_cb_is_busy(block_call, port, &blocks))
			return -EBUSY;
		block = flow_block_cb_alloc(block_call, port, port, NULL);
		if (IS_ERR(block))
			return PTR_ERR(block);
		flow_block_cb_add(block, f);
		list_add_tail(&block->driver_list, &blocks);
		card_count(BINDS);
		card_event("bind %s%s", dev->name, f->block_shared ? " shared" : "");
		return 0;
	}
	block = flow_block_cb_lookup(f->block, block_call, port);
	if (!block)
		return -ENOENT;
	flow_block_cb_remove(block, f);
	list_del(&block->driver_list);
	card_event("unbind %s", dev->name);
	return 0;
}

int card_setup_tc(struct net_device *dev, enum tc_setup_type type, void *data)
{
	return type == TC_SETUP_BLOCK ? setup_block(dev, data) : -EOPNOTSUPP;
}

/* -- blocks of tunnel devices -------------------------------------------------------------------------- */

void card_release_tunnel(void *private)
{
	kfree(private); /* tc has deleted the filters before */
}

int card_setup_indirect(struct net_device *dev, struct Qdisc *sch, void *private, enum tc_setup_type type, void *type_data,
			  void *data, void (*cleanup)(struct flow_block_cb *block))
{
	struct flow_block_offload *f = type_data;
	struct flow_block_cb *block;
	struct port *port;

	if (!dev || type != TC_SETUP_BLOCK || f->binder_type != FLOW_BLOCK_BINDER_TYPE_CLSACT_INGRESS ||
	    !(netif_is_vxlan(dev) || netif_is_geneve(dev) || netif_is_gretap(dev) || netif_is_ip6gretap(dev)))
		return -EOPNOTSUPP;
	f->unlocked_driver_cb = true;
	f->driver_block_list = &indirect_blocks;
	if (f->command == FLOW_BLOCK_BIND) {
		port = kzalloc(sizeof(*port), GFP_KERNEL);
		if (!port)
			return -ENOMEM;
		port->dev = dev;
		INIT_LIST_HEAD(&port->masks);
		block = flow_indr_block_cb_alloc(block_call, dev, port, card_release_tunnel, f, dev, sch, data, private, cleanup);
		if (IS_ERR(block)) {
			kfree(port);
			return PTR_ERR(block);
		}
		flow_block_cb_add(block, f);
		list_add_tail(&block->driver_list, &indirect_blocks);
		card_count(INDIRECT_BINDS);
		card_event("indirect bind %s", dev->name);
		return 0;
	}
	block = flow_block_cb_lookup(f->block, block_call, dev);
	if (!block)
		return -ENOENT;
	flow_indr_block_cb_remove(block, f);
	list_del(&block->driver_list);
	card_event("indirect unbind %s", dev->name);
	return 0;
}
