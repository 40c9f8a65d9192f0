"""The commands of mqadmin and their flags, as in RocketMQ 4.9.8 and 5.3.3.

A line without indentation is a command: its name, the module that runs it, and what it does. The
lines below it are its flags, each ``short=long``, with these marks:

    t!=topic        required
    l-=list         without a value
    =attributes     without a short name
    print~msg       a long name with a blank
    b|c             exactly one of these flags
    b/c             one of these flags, or the command prints its usage
    …@4, …@5        only in 4.9.8, only in 5.3.3

Source: the commands of rocketmq-tools 4.9.8 and 5.3.3.
"""

TABLE = """
updateTopic topics: creates a topic or changes its settings
    b|c p=perm b=brokerAddr r=readQueueNums c=clusterName s=hasUnitSub t!=topic u=unit
    w=writeQueueNums o=order a=attributes@5
updateTopicList@5 topics: creates or changes many topics from a file
    b|c b=brokerAddr c=clusterName f!=filename
updateStaticTopic@5 static_topics: creates a static topic, or gives one more logical queues
    b|c t!=topic qn!=totalQueueNum b=brokers c=clusters mf=mapFile fr=forceReplace
remappingStaticTopic@5 static_topics: moves the logical queues of a static topic to some brokers
    b|c t!=topic b=brokers c=clusters mf=mapFile fr=forceReplace
deleteTopic topics: removes a topic from the brokers of a cluster and from the name servers
    c!=clusterName t!=topic
updateSubGroup groups: creates a consumer group or changes its settings
    b/c q=retryQueueNums a=notifyConsumerIdsChanged b=brokerAddr r=retryMaxTimes c=clusterName
    s=consumeEnable d=consumeBroadcastEnable g!=groupName w=whichBrokerWhenConsumeSlowly i=brokerId
    m=consumeFromMinEnable o=consumeMessageOrderly@5 p=groupRetryPolicy@5 =attributes@5
updateSubGroupList@5 groups: creates or changes many groups from a file
    b|c b=brokerAddr c=clusterName f!=filename
setConsumeMode@5 groups: sets whether a group reads a topic by pull or by pop
    b=brokerAddr c=clusterName t!=topicName g!=groupName m!=mode q=popShareQueueNum
deleteSubGroup groups: removes a consumer group's settings
    b/c b=brokerAddr r=removeOffset c=clusterName g!=groupName
updateBrokerConfig settings: changes one setting of running brokers
    b=brokerAddr c=clusterName v!=value k!=key a=updateAllBroker@5
updateTopicPerm topics: changes the permissions of a topic
    p!=perm b=brokerAddr c=clusterName t!=topic
topicRoute topics: shows the brokers and queues of a topic
    t!=topic l-=list
topicStatus topics: shows the smallest and largest offset of each queue of a topic
    t!=topic c=cluster@5
topicClusterList topics: lists the clusters of a topic
    t!=topic
addBroker@5 brokers: starts a broker inside a container
    c!=brokerContainerAddr b!=brokerConfigPath
removeBroker@5 brokers: stops a broker inside a container
    c!=brokerContainerAddr b!=brokerIdentity
resetMasterFlushOffset@5 brokers: sets on a slave how far its master is known to have flushed
    b=brokerAddr o=offset
brokerStatus brokers: shows counters and limits of a running broker
    b|c@5 b=brokerAddr c=clusterName
queryMsgById queries: shows messages by the id of the broker
    s=sendMessage d=clientId u=unitName g=consumerGroup i!=msgId t!=topic@5 f=bodyFormat@5
    c=cluster@5
queryMsgByKey queries: lists messages that carry a key
    t!=topic k!=msgKey b=beginTimestamp@5 e=endTimestamp@5 m=maxNum@5 c=cluster@5
queryMsgByUniqueKey queries: shows a message by the unique id of its producer
    a-=showAll d=clientId t!=topic g=consumerGroup i!=msgId c=cluster@5
queryMsgByOffset queries: shows the message at an offset of a queue
    b!=brokerName t!=topic i!=queueId o!=offset f=bodyFormat@5
queryMsgTraceById queries: shows who sent and who consumed a message, from recorded traces
    t=traceTopic i!=msgId b=beginTimestamp@5 e=endTimestamp@5 c=maxNum@5
printMsg reads: prints the messages of all queues of a topic
    b=beginTimestamp~ c=charsetName~ s=subExpression~ t!=topic d=printBody~ e=endTimestamp~
    l=lmqParentTopic@5
printMsgByQueue reads: prints or counts the messages of one queue
    p=print~msg a!=brokerName~ b=beginTimestamp~ c=charsetName~ s=subExpression~ t!=topic
    d=printBody~ e=endTimestamp~ f=calculate i!=queueId~
sendMsgStatus sends: sends test messages to one broker and prints how long each took
    b!=brokerName s=messageSize c=count
brokerConsumeStats brokers: lists the lag of each group in each queue of a broker
    b!=brokerAddr t=timeoutMillis l=level o=order
producerConnection clients: lists the connected clients of a producer group
    t!=topic g!=producerGroup
consumerConnection clients: lists the clients of a consumer group and their subscriptions
    b=brokerAddr g!=consumerGroup
consumerProgress groups: shows the committed offsets and the lag of groups
    s=showClientIP g=groupName t=topicName@5 c=cluster@5
consumerStatus clients: shows what connected consumers hold, and whether they agree
    b=brokerAddr s-=jstack g!=consumerGroup i=clientId
cloneGroupOffset offsets: gives one group the offsets of another for a topic
    s!=srcGroup d!=destGroup t!=topic o=offline
producer clients: lists all connected producers of a broker
    b!=broker
clusterList cluster: lists clusters and their brokers with load
    i=interval m-=moreStats c=clusterName@5
topicList topics: lists topics, or topics with their groups and clusters
    c-=clusterModel
updateKvConfig settings: writes an entry of the name servers' key-value table
    s!=namespace v!=value k!=key
deleteKvConfig settings: removes an entry of the name servers' key-value table
    s!=namespace k!=key
wipeWritePerm settings: takes write permission from all topics of a broker, in the name servers
    b!=brokerName
addWritePerm settings: gives write permission back to all topics of a broker, in the name servers
    b!=brokerName
resetOffsetByTime offsets: moves a group to the offsets of a point in time, while it runs
    s!=timestamp c-=cplus@4 t!=topic f=force g!=group c=cluster@5 b=broker@5 q=queue@5 o=offset@5
skipAccumulatedMessage offsets: moves a group to the end of every queue
    t!=topic f=force g!=group c=cluster@5
updateOrderConf topics: writes, reads or removes the order configuration of a topic
    t!=topic v=orderConf m!=method
cleanExpiredCQ brokers: deletes consume queue files whose messages are gone
    b=brokerAddr c=cluster
deleteExpiredCommitLog brokers: deletes expired commit log files
    b=brokerAddr c=cluster
cleanUnusedTopic brokers: deletes what is stored of topics that no longer exist
    b=brokerAddr c=cluster
startMonitoring groups: watches consumers until stopped, and prints their lag
statsAll topics: shows messages per second and lag for every topic and group
    a-=activeTopic t=topic
allocateMQ topics: shows how the queues of a topic would be shared among given clients
    t!=topic i!=ipList
checkMsgSendRT sends: sends test messages and prints the response time of each and the average
    a=amount s=size t!=topic
clusterRT sends: sends test messages to every broker in a loop and prints response times
    p=print~log a=amount s=size c=cluster i=interval m=machine~room
getNamesrvConfig settings: shows the settings of the name servers
updateNamesrvConfig settings: changes one setting of running name servers
    v!=value k!=key
getBrokerConfig settings: shows the settings of one broker or of all in a cluster
    b=brokerAddr c=clusterName
getConsumerConfig groups: shows a consumer group's settings on each broker
    g!=groupName
queryCq queries: prints entries of a consume queue and how a subscription matches them
    q!=queue b=broker c=count t!=topic g=consumer i!=index
sendMessage sends: sends one message
    p!=body b=broker c=tags t!=topic i=qid k=key m=msgTraceEnable
consumeMessage reads: reads messages and prints them, without committing offsets
    b=brokerName s=beginTimestamp~ c=MessageNumber t!=topic e=endTimestamp~ g=consumerGroup
    i=queueId o=offset
exportMetadata exports: writes topics and groups to a JSON file
    b=brokerAddr c=clusterName s-=specialTopic t-=topic f=filePath g-=subscriptionGroup
exportConfigs exports: writes main settings of brokers and the size of the cluster to a JSON file
    c!=clusterName f=filePath
exportMetrics exports: writes figures of the load of brokers to a JSON file
    c!=clusterName f=filePath
haStatus@5 brokers: shows the state of replication
    b/c c=clusterName b=brokerAddr i=interval
getSyncStateSet@5 controllers: shows which brokers of a set are in sync, from the controller
    b/c a!=controllerAddress c=clusterName b=brokerName i=interval
getBrokerEpoch@5 controllers: shows the epochs of a broker's log
    b/c c=clusterName b=brokerName i=interval
getControllerMetaData@5 controllers: shows the leader and the members of the controllers
    a!=controllerAddress
getControllerConfig@5 controllers: shows the settings of controllers
    a!=controllerAddress
updateControllerConfig@5 controllers: changes one setting of controllers
    a!=controllerAddress k!=key v!=value
electMaster@5 controllers: lets the controller elect a broker as master
    a!=controllerAddress b!=brokerId bn!=brokerName c!=clusterName
cleanBrokerMetadata@5 controllers: removes brokers from the controller
    a!=controllerAddress b=brokerControllerIdsToClean bn!=brokerName c=clusterName
    l-=cleanLivingBroker
getColdDataFlowCtrInfo@5 brokers: shows how reading of cold data is throttled
    b=brokerAddr c=clusterName
updateColdDataFlowCtrGroupConfig@5 brokers: sets a group's limit for reading cold data
    b=brokerAddr c=clusterName g!=consumerGroup v!=threshold
removeColdDataFlowCtrGroupConfig@5 brokers: removes a group's limit for reading cold data
    b=brokerAddr c=clusterName g!=consumerGroup
setCommitLogReadAheadMode@5 brokers: sets how the kernel reads ahead in the commit log
    b=brokerAddr c=clusterName m!=commitLogReadAheadMode
createUser@5 users: creates a user of access control 2.0
    c|b c=clusterName b=brokerAddr u!=username p!=password t=userType
updateUser@5 users: changes a user's password, kind or state
    c|b p|t|s c=clusterName b=brokerAddr u!=username p=password t=userType s=userStatus
deleteUser@5 users: removes a user
    c|b c=clusterName b=brokerAddr u!=username
getUser@5 users: shows one user
    b|c b=brokerAddr c=clusterName u=username
listUser@5 users: lists users
    b|c b=brokerAddr c=clusterName f=filter
copyUser@5 users: copies users from one broker to another
    f!=fromBroker t!=toBroker u=usernames
createAcl@5 users: creates a policy of access control 2.0
    c|b c=clusterName b=brokerAddr s!=subject r!=resources a!=actions i=sourceIp d!=decision
updateAcl@5 users: changes a policy
    c|b c=clusterName b=brokerAddr s!=subject r!=resources a!=actions d!=decision i=sourceIp
deleteAcl@5 users: removes a policy, or its entry for a resource
    c|b c=clusterName b=brokerAddr s!=subject r=resources
getAcl@5 users: shows the policy of one subject
    b|c b=brokerAddr c=clusterName s=subject
listAcl@5 users: lists policies
    b|c b=brokerAddr c=clusterName s=subject r=resource
copyAcl@5 users: copies policies from one broker to another
    f!=fromBroker t!=toBroker s=subjects
updateAclConfig@4 accounts: creates or changes a plain account
    b|c a!=accessKey b=brokerAddr c=clusterName s!=secretKey t=topicPerms u=defaultGroupPerm
    w=whiteRemoteAddress g=groupPerms i=defaultTopicPerm m=admin
deleteAclConfig@4 accounts: removes a plain account
    b|c a!=accessKey b=brokerAddr c=clusterName
clusterAclConfigVersion@4 accounts: shows the version of the access control file of each broker
    b|c b=brokerAddr c=clusterName
updateGlobalWhiteAddr@4 accounts: replaces the white addresses, which need no account
    b|c p=aclFileFullPath b=brokerAddr c=clusterName g!=globalWhiteRemoteAddresses
"""

MEANINGS = """
accessKey: name of the account
aclFileFullPath: access control file on the broker to change, instead of the usual one
actions: actions, separated by commas
activeTopic: leave out topics without traffic
admin: whether the account may administrate
amount: number of test messages; 100 if not given
attributes: attributes: +name=value sets, -name removes, separated by commas
beginTimestamp: earliest time
beginTimestamp~: earliest time
body: text of the message
bodyFormat: character set in which to print the body
broker: address host:port of the broker
brokerAddr: address host:port of the one broker to use
brokerConfigPath: configuration file of the broker, on the container's machine
brokerContainerAddr: address host:port of the container
brokerControllerIdsToClean: numbers of the brokers to forget, separated by ;
brokerId: number of the broker that members read from
brokerIdentity: cluster:name:number of the broker
brokerName: name of the broker
brokerName~: name of the broker
brokers: names of brokers, separated by commas
calculate: count messages per tag
charsetName~: character set of the bodies
cleanLivingBroker: also forget brokers that are alive
clientId: client id of one member of the group
cluster: cluster, or parent topic of a light queue, used to find the route
clusterModel: show cluster and consumer groups too
clusterName: cluster whose brokers to use
clusters: clusters whose brokers to use, separated by commas
commitLogReadAheadMode: 0 normal, 1 random access
consumeBroadcastEnable: whether the group may read in broadcast mode
consumeEnable: whether the group may consume
consumeFromMinEnable: whether the group may start at the smallest offset
consumeMessageOrderly: whether the group consumes in order
consumer: consumer group whose subscription to evaluate
consumerGroup: consumer group
controllerAddress: address of the controllers, separated by ;
count: number of test messages; 50 if not given
cplus: the members are clients written in C++
decision: Allow or Deny
defaultGroupPerm: permission for groups without an entry
defaultTopicPerm: permission for topics without an entry
destGroup: group that gets the offsets
endTimestamp: latest time
endTimestamp~: latest time
filename: JSON file with the list of settings
filePath: folder to write into; /tmp/rocketmq/export if not given
filter: part of the name
force: also move the group forward
forceReplace: with a file: true sends it to brokers that have newer mappings, too
fromBroker: address of the broker to copy from
globalWhiteRemoteAddresses: white addresses or patterns, separated by commas
group: consumer group
groupName: consumer group
groupPerms: group=permission entries, separated by commas
groupRetryPolicy: JSON with the waiting times between retries
hasUnitSub: marks the topic as subscribed to by units
index: first entry to show
interval: seconds between repetitions
ipList: client ids, separated by commas
jstack: ask for a thread dump too
key: name of the setting or entry
level: smallest lag to show
list: print a table instead of JSON
lmqParentTopic: parent topic of a light queue, used to find the route
machine~room: name of the place, for log lines
mapFile: file of mappings that an earlier command has written, to send it again
maxNum: limit of messages; 64 if not given
MessageNumber: number of messages to read; 128 if not given
messageSize: bytes of a test message; 128 if not given
method: put, get or delete
mode: PULL or POP
moreStats: show messages of yesterday and today instead of rates
msgId: id of the message
msgKey: key of the messages
msgTraceEnable: record a trace of the message
namespace: namespace of the entry
notifyConsumerIdsChanged: whether members are told when the group's members change
offline: whether the source group has no members now
offset: offset in the queue
order: whether the topic is an ordered one
orderConf: broker:queues entries, separated by ;
password: the user's password
perm: 2 write, 4 read, 6 both
popShareQueueNum: how many queues a member may share in pop mode
print~log: print log lines instead of a table
print~msg: print the messages
printBody~: print the bodies too
producerGroup: producer group
qid: queue number; needs a broker
queue: queue number
queueId: queue number
queueId~: queue number
readQueueNums: number of queues to read; 8 if not given for a new topic
removeOffset: forget the group's offsets too
resource: part of the resource's name
resources: resources as Kind:name, separated by commas
retryMaxTimes: retries before a message becomes a dead letter
retryQueueNums: queues of the group's retry topic
secretKey: secret of the account
sendMessage: send the found message again
showAll: show every message found, at most 32
showClientIP: show which client has the queue
size: bytes of a test message; 128 if not given
sourceIp: addresses the policy is for, separated by commas
specialTopic: include retry and dead-letter topics
srcGroup: group whose offsets to take
subExpression~: tags to show, as A || B
subject: subject as User:name
subjects: subjects, separated by commas; all if not given
subscriptionGroup: write groups only
tags: tag of the message
threshold: bytes per second
timeoutMillis: timeout in ms; 50000 if not given
timestamp: time: now, milliseconds or yyyy-MM-dd#HH:mm:ss:SSS
toBroker: address of the broker to copy to
topic: topic
topicName: topic
topicPerms: topic=permission entries, separated by commas
totalQueueNum: number of logical queues
traceTopic: topic that holds the traces; the built-in one if not given
unit: marks the topic as one of a unit
unitName: name of the client's unit
updateAllBroker: change slaves too
username: the user's name
usernames: names, separated by commas; all if not given
userStatus: enable or disable
userType: Super or Normal
value: its value
whichBrokerWhenConsumeSlowly: number of the broker that slow consumers are sent to
whiteRemoteAddress: white addresses, from which the account needs no signature
writeQueueNums: number of queues to write; 8 if not given for a new topic
brokerConsumeStats.order: look at ordered topics instead of others
cleanExpiredCQ.cluster: cluster whose brokers to use
cleanUnusedTopic.cluster: cluster whose brokers to use
clusterRT.cluster: cluster to test; all if not given
clusterRT.interval: seconds between rounds; 10 if not given
deleteExpiredCommitLog.cluster: cluster whose brokers to use
electMaster.brokerId: number of the broker that is to become master
exportMetadata.topic: write topics only
queryCq.count: number of entries; 10 if not given
queryMsgById.msgId: ids, separated by commas
queryMsgById.topic: topic of the messages
resetMasterFlushOffset.offset: offset to set
resetOffsetByTime.offset: offset to set for the one queue
resetOffsetByTime.queue: the one queue to reset; needs a broker
sendMessage.broker: name of the broker to send to
sendMessage.key: keys of the message
sendMsgStatus.brokerName: name of the broker, which is also the name of the topic used
statsAll.topic: show this topic only
"""
"""The meanings of flags, by long name; a meaning with a command before the name is for this command
only."""

ALIASES = {"QueryMsgTraceById": "queryMsgTraceById", "deleteAccessConfig": "deleteAclConfig"}

ABSENT = {
    "dumpCompactionLog": "CometMQ has no compacted topics",
    "exportMetadataInRocksDB": "CometMQ stores nothing in RocksDB",
    "exportPopRecord": (
        "a broker of CometMQ has its check points of pops in the log already; for a broker of"
        " RocketMQ use RocketMQ's mqadmin"
    ),
    "rocksDBConfigToJson": "CometMQ stores nothing in RocksDB",
    "checkRocksdbCqWriteProgress": "CometMQ stores nothing in RocksDB",
}
"""Commands of RocketMQ 5.3.3 that do not exist here, and why."""
