"""The names of RocketMQ's configuration keys: those of release 4.9.8 and of release 5.3.3.

A key in this list that no settings class claims has no effect and causes a warning; any other
unknown key is an error. Source: the setters of RocketMQ's configuration classes and the settings
that its brokers print.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator


class Keys(Collection[str]):
    """Names of keys, which are split when they are needed: a start needs them once.

    Args:
        texts: the names, with blanks between them.
    """

    def __init__(self, *texts: str) -> None:
        self._texts = texts

    def _names(self) -> frozenset[str]:
        return frozenset(" ".join(self._texts).split())

    def __contains__(self, key: object) -> bool:
        return key in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())


_BROKER = """
    accountStatsEnable accountStatsPrintZeroValues ackMessageThreadPoolNums
    ackThreadPoolQueueCapacity aclEnable adminBrokerThreadPoolNums
    adminBrokerThreadPoolQueueCapacity allowRecallWhenBrokerNotWriteable appendAckAsync
    appendCkAsync asyncSendEnable autoCreateSubscriptionGroup autoCreateTopicEnable
    autoDeleteUnusedStats broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond
    brokerClusterName brokerConfigPath brokerElectionPriority brokerFastFailureEnable
    brokerHeartbeatInterval brokerIP1 brokerIP2 brokerId brokerName brokerNotActiveTimeoutMillis
    brokerPermission brokerTopicEnable cgColdReadThreshold channelExpiredTimeout
    checkSyncStateSetPeriod cleanOfflineBrokerInterval clearRetryTopicWhenDeleteTopic
    clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity clusterTopicEnable
    coldCtrStrategyEnable commercialBaseCount commercialBigCount commercialEnable
    commercialSizePerMsg commercialTimerCount commercialTransCount compatibleWithOldNameSrv
    compressedRegister configBlackList configManagerVersion consumerFallbehindThreshold
    consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity
    consumerOffsetUpdateVersionStep controllerAddr controllerHeartBeatTimeoutMills
    defaultMessageRequestMode defaultPopShareQueueNum defaultTopicQueueNums
    delayOffsetUpdateVersionStep disableConsumeIfConsumerReadSlowly enableBroadcastOffsetStore
    enableCalcFilterBitMap enableControllerMode enableCreateSysGroup enableDetailStat
    enableFastChannelEventProcess enableLmqStats enableMixedMessageType enableNetWorkFlowControl
    enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
    enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePropertyFilter
    enableRegisterProducer enableRemoteEscape enableRetryTopicV2 enableSingleTopicRegister
    enableSkipLongAwaitingAck enableSlaveActingMaster enableSplitRegistration
    endTransactionPoolQueueCapacity endTransactionThreadPoolNums estimateAccumulation
    expectConsumerNumUseFilter fetchControllerAddrByDnsLookup fetchNameSrvAddrByDnsLookup
    fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval filterDataCleanTimeSpan
    filterServerNums filterSupportRetry flushConsumerOffsetHistoryInterval
    flushConsumerOffsetInterval forceRegister forwardTimeout globalColdReadThreshold
    heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity highSpeedMode inBrokerContainer
    initPopOffsetByCheckMsgInMem isBrokerContainer isInBrokerContainer isScanAvailableNameSrv
    isolateLogEnable listenPort litePullMessageEnable litePullMessageThreadPoolNums
    litePullThreadPoolQueueCapacity loadBalancePollNameServerInterval
    loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity lockInStrictMode
    longPollingEnable maxDelayTime maxErrorRateOfBloomFilter maxPopPollingSize
    maxStatsIdleTimeInMinutes messageStorePlugIn metricGrpcExporterIntervalInMills
    metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills metricsExporterType
    metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
    metricsOtelCardinalityLimit metricsPromExporterHost metricsPromExporterPort
    msgTraceTopicName namesrvAddr notifyConsumerIdsChangedEnable popCkMaxBufferSize
    popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
    popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog
    popFromRetryProbability popInflightMessageThreshold popLongPollingForceNotifyInterval
    popPollingMapSize popPollingSize popResponseReturnActualRetryTopic popReviveMaxAttemptTimes
    popReviveMaxReturnSizePerRead printChannelGroups printChannelGroupsMinNum
    processReplyMessageThreadPoolNums pullMessageThreadPoolNums pullThreadPoolQueueCapacity
    putMessageFutureThreadPoolNums putThreadPoolQueueCapacity queryMessageThreadPoolNums
    queryThreadPoolQueueCapacity realTimeNotifyConsumerChange recallMessageEnable
    recoverConcurrently recoverThreadPoolNums regionId registerBrokerTimeoutMills
    registerNameServerPeriod rejectPullConsumerEnable rejectTransactionMessage
    replyThreadPoolQueueCapacity retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs
    reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime rocketmqHome
    sendHeartbeatTimeoutMillis sendMessageThreadPoolNums sendThreadPoolQueueCapacity
    serverLoadBalancerEnable shortPollingTimeMills skipPreOnline skipWhenCKRePutReachMaxTimes
    slaveReadEnable splitRegistrationSize startAcceptSendRequestTimeStamp
    storeReplyMessageEnable subscriptionExpiredTimeout syncBrokerMemberGroupPeriod
    syncBrokerMetadataPeriod syncControllerMetadataPeriod traceOn traceTopicEnable
    transactionCheckInterval transactionCheckMax transactionMetricFlushInterval
    transactionOpBatchInterval transactionOpMsgMaxSize transactionTimeOut transferMsgByHeap
    updateNameServerAddrPeriod usePIDColdCtrStrategy useServerSideResetOffset
    useStaticSubscription validateSystemTopicWhenUpdateTopic waitTimeMillsInAckQueue
    waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue
    waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
"""
"""Keys of the broker itself."""

_STORE = """
    accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio allAckInSyncStateSet
    asyncLearner autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums
    bitMapLengthConsumeQueueExt bottomMostCompressionTypeForConsumeQueueStore brokerRole
    checkCRCOnRecover cleanFileForciblyEnable cleanResourceInterval
    cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval coldDataFlowControlEnable
    coldDataScanEnable commitCommitLogLeastPages commitCommitLogThoroughInterval
    commitIntervalCommitLog commitLogForceSwapMapInterval commitLogSwapMapInterval
    commitLogSwapMapReserveFileNum compactionCqMappedFileSize compactionMappedFileSize
    compactionScheduleInternal compactionThreadNum correctLogicMinOffsetForceInterval
    correctLogicMinOffsetSleepInterval dLegerGroup dLegerPeers dLegerSelfId dataReadAheadEnable
    debugLockEnable defaultQueryMaxNum deleteCommitLogFilesInterval
    deleteConsumeQueueFilesInterval deleteFileBatchMax deleteWhen
    destroyMapedFileIntervalForcibly disappearTimeAfterStart diskFallRecorded
    diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio
    dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread duplicationEnable
    enableAsyncReput enableAutoInSyncReplicas enableBatchPush
    enableBuildConsumeQueueConcurrently enableCleanExpiredOffset enableCompaction
    enableConsumeQueueExt enableDLegerCommitLog enableLmq enableMultiDispatch enableRocksDBLog
    enableScheduleAsyncDeliver enableScheduleMessageStats enabledAppendPropCRC
    fastFailIfNoBufferInStorePool fileReservedTime flushCommitLogLeastPages
    flushCommitLogThoroughInterval flushCommitLogTimed flushConsumeQueueLeastPages
    flushConsumeQueueThoroughInterval flushDelayOffsetInterval flushDiskType
    flushIntervalCommitLog flushIntervalConsumeQueue flushLeastPagesWhenWarmMapedFile
    forceVerifyPropCRC haFlowControlEnable haHousekeepingInterval haListenPort haMasterAddress
    haMaxGapNotInSync haMaxTimeSlaveNotCatchup haSendHeartbeatInterval haSlaveFallbehindMax
    haTransferBatchSize inSyncReplicas isEnableBatchPush logicQueueForceSwapMapInterval
    logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
    logicalDiskSpaceCleanForciblyThreshold mappedFileSizeCommitLog mappedFileSizeConsumeQueue
    mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog mappedFileSwapEnable
    mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests maxBatchDeleteFilesNum
    maxChecksumRange maxConsumeQueueScan maxFilterMessageSize maxHaTransferByteInSecond
    maxHashSlotNum maxIndexNum maxLmqConsumeQueueNum maxMessageSize maxMsgsNumBatch
    maxOffsetMapSize maxRecoveryCommitlogFiles maxSlaveResendLength maxTopicLength
    maxTransferBytesOnMessageInDisk maxTransferBytesOnMessageInMemory
    maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory memTableFlushIntervalMs
    messageDelayLevel messageIndexEnable messageIndexSafe minInSyncReplicas offsetCheckInSlave
    osPageCacheBusyTimeOutMills preferredLeaderId pullBatchMaxMessageCount
    putConsumeQueueDataByFileChannel putMessageTimeout putMsgIndexHightWater
    readOnlyCommitLogStorePaths readUnCommitted realTimePersistRocksDBConfig
    recheckReputOffsetFromCq redeleteHangedFileInterval replicasPerDiskPartition
    rocksdbCQDoubleWriteEnable rocksdbCompressionType rocksdbFlushWalFrequency
    rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps
    scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    searchBcqByCacheEnable slaveTimeout spinLockCollisionRetreatOptimalDegree
    statRocksDBCQIntervalSec storePathBrokerIdentity storePathCommitLog
    storePathDLedgerCommitLog storePathEpochFile storePathRootDir storeType syncFlushTimeout
    syncFromLastFile syncMasterFlushOffsetWhenStartup timerCheckMetricsWhen
    timerColdDataCheckIntervalMs timerCongestNumEachSlot timerEnableCheckMetrics
    timerEnableDisruptor timerEnableRetryUntilSuccess timerFlushIntervalMs
    timerGetMessageThreadNum timerInterceptDelayLevel timerMaxDelaySec timerMetricSmallThreshold
    timerPrecisionMs timerProgressLogIntervalMs timerPutMessageThreadNum timerRollWindowSlot
    timerSkipUnknownError timerStopDequeue timerStopEnqueue timerWarmEnable timerWheelEnable
    topicQueueLockNum totalReplicas transientStorePoolEnable transientStorePoolSize
    travelCqFileNumWhenGetMessage useABSLock useReentrantLockWhenPutMessage
    wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable
"""
"""Keys of its store."""

_NETWORK = """
    bindAddress channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
    clientWorkerThreads connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup
    enableReconnectForGoAway enableShutdownGracefully listenPort maxReconnectIntervalTimeSeconds
    scanAvailableNameSrv serverAsyncSemaphoreValue serverCallbackExecutorThreads
    serverChannelMaxIdleTimeSeconds serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds
    socksProxyConfig useEpollNativeSelector useTLS writeBufferHighWaterMark
    writeBufferLowWaterMark
"""
"""Keys of the network layer, which every server reads."""

_AUTH = """
    aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath
    authenticationEnabled authenticationMetadataProvider authenticationProvider
    authenticationStrategy authenticationWhitelist authorizationEnabled
    authorizationMetadataProvider authorizationProvider authorizationStrategy
    authorizationWhitelist clusterName configName initAuthenticationUser
    innerClientAuthenticationCredentials migrateAuthFromV1Enabled
    statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
    statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
    userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
"""
"""Keys of release 5.3's access control."""

_NAMESRV = """
    clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity clusterTest configBlackList
    configStorePath defaultThreadPoolNums defaultThreadPoolQueueCapacity
    deleteTopicWithBrokerRegistration enableAllTopicList enableControllerInNamesrv
    enableTopicList kvConfigPath needWaitForService notifyMinBrokerIdChanged orderMessageEnable
    productEnvName returnOrderTopicConfigToBroker rocketmqHome scanNotActiveBrokerInterval
    supportActingMaster unRegisterBrokerQueueCapacity waitSecondsForService
"""
"""Keys of the name server."""

_FILTERSRV = """
    clientUploadFilterClassEnable compressMsgBodyOverHowmuch connectWhichBroker
    filterClassRepertoryUrl filterServerIP fsServerAsyncSemaphoreValue
    fsServerCallbackExecutorThreads fsServerWorkerThreads namesrvAddr rocketmqHome zipCompressLevel
"""
"""Keys of the filter server, which RocketMQ had until release 4.2."""

_CONTROLLER = """
    configBlackList configStorePath controllerDLegerGroup controllerDLegerPeers
    controllerDLegerSelfId controllerRequestThreadPoolQueueCapacity controllerStorePath
    controllerThreadPoolNums controllerType electMasterMaxRetryCount enableElectUncleanMaster
    isProcessReadEvent mappedFileSize metricGrpcExporterIntervalInMills
    metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills metricsExporterType
    metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
    metricsPromExporterHost metricsPromExporterPort notifyBrokerRoleChanged processReadEvent
    rocketmqHome scanInactiveMasterInterval scanNotActiveBrokerInterval
"""
"""Keys of release 5.3's controller."""

BROKER_KEYS = Keys(_BROKER, _STORE, _NETWORK, _AUTH)
"""What RocketMQ reads from a broker's configuration file."""

NAMESRV_KEYS = Keys(_NAMESRV, _CONTROLLER, _NETWORK)
"""What RocketMQ reads from a name server's configuration file."""

FILTERSRV_KEYS = Keys(_FILTERSRV, _NETWORK)
"""What RocketMQ reads from a filter server's configuration file."""

CONTROLLER_KEYS = Keys(_CONTROLLER, _NETWORK)
"""What RocketMQ reads from a controller's configuration file."""

PROTECTED_KEYS = frozenset(
    ("brokerConfigPath", "configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
)
"""Keys that no request may change, whether we act on them or not."""
